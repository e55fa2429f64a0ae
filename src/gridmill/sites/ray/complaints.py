"""What Ray's errors say, in a line."""


def short_of(error: BaseException) -> str:
    """On one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:500] or type(error).__name__


def last_of(error: BaseException) -> str:
    """The last line of a traceback that Ray carries: the error itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:500] if lines else type(error).__name__


def hint_of(error: BaseException) -> str:
    """What to do about it."""
    text = str(error)
    if "ersion mismatch" in text:
        return "Ray wants the same Python, to the patch level, and the same Ray on every machine."
    if "token" in text.lower() or "auth" in text.lower():
        return "Put the cluster's token into a file and name it: --set token_file=FILE."
    return "Is it up, and is this machine one of its nodes? From elsewhere the address is ray://HOST:10001."
