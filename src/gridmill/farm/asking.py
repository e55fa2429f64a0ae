"""What all routes of the controller share: who asks which farm, and how it answers."""

from typing import Annotated

from fastapi import Depends, Request
from starlette.responses import Response

from gridmill.codec import encode
from gridmill.farm.farm import Farm
from gridmill.farm.guard import SOURCE
from gridmill.farm.source import Source


def _farm(request: Request) -> Farm:
    farm: Farm = request.app.state.farm
    return farm


def _source(request: Request) -> Source:
    source: Source = request.scope[SOURCE]
    return source


TheFarm = Annotated[Farm, Depends(_farm)]
Asking = Annotated[Source, Depends(_source)]


def reply(noun: object) -> Response:
    """A noun as the codec writes it."""
    return Response(encode(noun), media_type="application/json")


def done() -> Response:
    """Nothing to say."""
    return Response(status_code=204)
