"""nginx as a plain proxy in front of our replica, beside our router."""

from pathlib import Path
from shutil import which

CONFIGURATION = """
daemon off;
master_process off;
pid "{folder}/pid";
error_log "{folder}/error.log" warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path "{folder}/bodies";
  proxy_temp_path "{folder}/answers";
  fastcgi_temp_path "{folder}/fastcgi";
  uwsgi_temp_path "{folder}/uwsgi";
  scgi_temp_path "{folder}/scgi";
  keepalive_requests 1000000000;
  upstream replicas {{
    # twice, because nginx sends a request again only to another entry
    server 127.0.0.1:{to} max_fails=0;
    server 127.0.0.1:{to} max_fails=0;
    keepalive 256;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port};
    client_max_body_size 16m;
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_next_upstream error timeout non_idempotent;
    }}
  }}
}}
"""


def program() -> str | None:
    """The path of nginx; None where it is not installed. Debian installs it where only root looks."""
    return which("nginx") or which("/usr/sbin/nginx")


def command(nginx: str, port: int, to: int, folder: Path) -> list[str]:
    """The command of an nginx that passes requests at `port` on to `to`. Its files are in `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "nginx.conf").write_text(CONFIGURATION.format(folder=folder, port=port, to=to))
    return [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]


def cpu_seconds(pid: int) -> float:
    """The processor time that all threads of a process have used."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
