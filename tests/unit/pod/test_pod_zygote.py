"""What a zygote imports, and when."""

import subprocess
import sys

import pytest

from gridmill.plugins import MODEL_PREIMPORTS

_SAYS = "print(*({'torch', 'sklearn'} & set(sys.modules)))"
_PANDAS = "print('pandas' in sys.modules)"


@pytest.mark.parametrize(("model", "brought"), [("custom", ""), ("linear", "sklearn")])
def test_a_training_pod_imports_what_its_model_needs_alone(model: str, brought: str) -> None:
    imports = MODEL_PREIMPORTS.get(model, ())
    preloads = "import sys; from gridmill.pod.zygote import bring, preload; preload('training')"
    code = f"{preloads}; bring({imports}); {_SAYS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == brought.split()


@pytest.mark.parametrize("kind", ["sink", "dataset", "training", "prediction"])
def test_no_pod_imports_pandas(kind: str) -> None:
    code = f"import sys; from gridmill.pod.zygote import preload; preload({kind!r}); {_PANDAS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_what_cannot_be_imported_is_left_to_the_job() -> None:
    code = "from gridmill.pod.zygote import bring; bring(['no.such', 'json'])"
    subprocess.run([sys.executable, "-c", code], check=True)
