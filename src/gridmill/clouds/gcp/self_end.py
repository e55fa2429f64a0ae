"""The commands with which machines of Compute Engine end themselves.

A machine that shuts down keeps its disk, which costs money. Therefore a machine deletes itself through the
API with the service account that the metadata server gives it. Sources: instances.delete in the Compute
Engine API reference; "View and query VM metadata" and "Access tokens" in the Compute Engine documentation.
"""

import shlex

from gridmill.clouds.gcp.requests import HOSTS

METADATA = "http://metadata.google.internal/computeMetadata/v1"
NOTHING = "echo 'gridmill: Google Cloud deletes this machine at the end of its longest time' >&2"
"""The command of a machine without a service account, which only the provider can delete."""
_DELETE = """m={metadata}
get() {{ curl -sf -m 5 -H 'Metadata-Flavor: Google' "$m/$1"; }}
token=$(get instance/service-accounts/default/token | sed 's/.*"access_token" *: *"\\([^"]*\\)".*/\\1/')
project=$(get project/project-id) zone=$(get instance/zone) name=$(get instance/name)
printf 'header = "Authorization: Bearer %s"\\n' "$token" |
    curl -sf -m 20 -K - -X DELETE \\
    {host}/compute/v1/projects/"$project"/zones/"${{zone##*/}}"/instances/"$name"
"""


def end_command(*, has_service_account: bool, endpoint_url: str = "") -> str:
    """Return the shell command with which a machine ends itself. The token does not appear in the list of
    processes."""
    if not has_service_account:
        return NOTHING
    return _DELETE.format(metadata=METADATA, host=shlex.quote(endpoint_url or HOSTS["compute"]))
