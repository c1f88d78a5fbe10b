"""Writing requests: a campaign and the recipients of one dispatch, as JSON in the service's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import orjson

from sendoff.audience import read_template_values
from sendoff.campaign import Broadcast, ByConditions, Campaign, Condition, Conditions, SavedSegments, Template
from sendoff.errors import CampaignError
from sendoff.service.wire.content import channel_flags, content
from sendoff.service.wire.names import FieldNames, Members, to_object
from sendoff.service.wire.timing import schedule, timing

if TYPE_CHECKING:
    from sendoff.audience.identifiers import Identifiers

CREATE_PATH = "/api/external/create/campaign"
EXECUTE_PATH = "/api/external/execute/campaign"
LIST_PATH = "/api/external/list/campaign"

ARRAYS = {
    "device_id": "device_ids",
    "device_token": "device_tokens",
    "device_uuid": "device_uuids",
    "external_id": "external_ids",
}
TARGETS = {
    "device_id": "target_by_device_id",
    "device_token": "target_by_device_token",
    "external_id": "target_by_external_id",
    "user_id": "target_by_user_id",
}
TYPES = {str: "<text>", int: "<number>", float: "<number>", bool: "<true or false>"}


@dataclass(frozen=True, slots=True)
class PostBackAddresses:
    """The addresses for the post-backs of one request; None for a kind that is not wanted."""

    delivery: str | None = field(default=None, repr=False)
    open: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Targeting:
    """The recipients of one dispatch, and their kind of identifier (a column of the audience query).

    ``template_values``: each recipient's own values, in the form of ``Segment``. ``opt_out_url``: returns the address
    where a recipient opts out, for templates that show it.
    """

    identified_by: str
    identifiers: Identifiers = field(repr=False)
    template_values: bytes | None = field(default=None, repr=False)
    opt_out_url: Callable[[int | str], str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not len(self.identifiers):
            raise ValueError(
                "a request needs at least one recipient: the service's document does not say what happens without one"
            )


def create_body(
    campaign: Campaign,
    *,
    title: str,
    targeting: Targeting | None,
    post_backs: PostBackAddresses,
    app_token: str | None = None,
    names: FieldNames | None = None,
) -> bytes:
    """Write the request that creates a campaign (section 4.2). The campaign must be resolved and have one variation.

    ``targeting``: the recipients; None if the service chooses them. Raise CampaignError if the campaign cannot be sent
    this way, and SettingsError if ``field_names`` gives two members the same name.
    """
    names = names or FieldNames()
    if campaign.template:
        raise CampaignError("a campaign with a template is executed, not created")
    if targeting and (why := campaign.refuses(targeting.identified_by)):
        raise CampaignError(why)
    if not campaign.has_one_variation:
        raise CampaignError("one request can contain only one variation; send each variation separately")
    return _encoded(
        _opening(app_token, title),
        channel_flags(campaign, names),
        content(campaign, names),
        _people(campaign, targeting, names),
        schedule(campaign, names),
        timing(campaign, names),
        _post_backs(post_backs),
    )


def execute_body(
    campaign: Campaign,
    *,
    targeting: Targeting,
    post_backs: PostBackAddresses,
    app_token: str | None = None,
    names: FieldNames | None = None,
) -> bytes:
    """Write the request that executes a template (section 4.3), with each recipient's own variables.

    Raise CampaignError if an execution cannot use this kind of identifier, or if the recipients have no values for the
    template. Raise SettingsError if ``field_names`` gives two members the same name.
    """
    names = names or FieldNames()
    if campaign.template is None:
        raise CampaignError("only a campaign with a template is executed")
    if why := campaign.refuses(targeting.identified_by):
        raise CampaignError(why)
    return _encoded(
        _opening(app_token),
        _execution(campaign.template, targeting, names),
        _post_backs(post_backs),
    )


def request_body(
    campaign: Campaign,
    *,
    title: str,
    targeting: Targeting | None,
    post_backs: PostBackAddresses,
    app_token: str | None = None,
    names: FieldNames | None = None,
) -> bytes:
    """Write the request that sends a campaign: it creates the campaign, or executes its template.

    Raise the same errors as :func:`create_body` and :func:`execute_body`.
    """
    if campaign.template is None:
        return create_body(
            campaign,
            title=title,
            targeting=targeting,
            post_backs=post_backs,
            app_token=app_token,
            names=names,
        )
    if targeting is None:
        raise CampaignError("a template needs the recipients of a query")
    return execute_body(
        campaign, targeting=targeting, post_backs=post_backs, app_token=app_token, names=names
    )


def list_body(limit: int, offset: int, app_token: str | None = None) -> bytes:
    """Write the request for a page of the list of campaigns, newest first. The service's document does not show it."""
    page = {"limit": limit, "offset": offset, "select": ["id", "title"], "order": ["id DESC"]}
    return orjson.dumps(page if app_token is None else {"apptoken": app_token, **page})


def mask_template_values(request: Mapping[str, Any], names: FieldNames | None = None) -> dict[str, Any]:
    """Return a request with the types of each recipient's template values in their place, such as ``<text>``."""
    own = (names or FieldNames())["target_with_params"]
    people = {
        person: {name: TYPES[type(value)] for name, value in variables.items()}
        for person, variables in request.get(own, {}).items()
    }
    return {**request, own: people} if people else dict(request)


def _encoded(*parts: Members) -> bytes:
    return orjson.dumps(to_object(chain(*parts)), option=orjson.OPT_SERIALIZE_NUMPY)


def _opening(app_token: str | None, title: str | None = None) -> Members:
    yield "apptoken", app_token
    yield "title", title


def _post_backs(addresses: PostBackAddresses) -> Members:
    yield "webhook_delivery", addresses.delivery
    yield "webhook_open", addresses.open


def _execution(template: Template, targeting: Targeting, names: FieldNames) -> Members:
    yield names["execute_id"], template.id
    yield names["target_by"], names[TARGETS[targeting.identified_by]]
    if template.columns or template.unsubscribe_url:
        yield names["target_with_params"], _own_variables(template, targeting)
    else:
        yield names["target"], targeting.identifiers.values()
    # The document does not show how the service combines the two, so no variable is in both.
    common = {name: value for name, value in template.parameters.items() if name not in template.columns}
    yield names["params"], common or None


def _own_variables(template: Template, targeting: Targeting) -> dict[str, dict[str, Any]]:
    people = targeting.identifiers.values()
    variables = _values_of_columns(template, targeting, len(people))
    if name := template.unsubscribe_url:
        if targeting.opt_out_url is None:
            raise CampaignError(f"the template needs an address to opt out in {name}, but there is none")
        for person, own in zip(people, variables, strict=True):
            own[name] = targeting.opt_out_url(person)
    return {str(person): own for person, own in zip(people, variables, strict=True)}


def _values_of_columns(template: Template, targeting: Targeting, people: int) -> list[dict[str, Any]]:
    if not template.columns:
        return [{} for _ in range(people)]
    if targeting.template_values is None:
        raise CampaignError(
            f"the template needs each recipient's own {', '.join(template.columns)}, but the segment has no values"
        )
    instead = {name: value for name, value in template.parameters.items() if name in template.columns}
    rows = read_template_values(targeting.template_values, template.columns)
    return [{**instead, **own} for own in rows]


def _people(campaign: Campaign, targeting: Targeting | None, names: FieldNames) -> Members:
    """Yield the one segmentation that every campaign needs, even a broadcast (section 2.3)."""
    chosen = campaign.targeting
    if (targeting is None) == (chosen.kind == "query"):
        raise CampaignError(
            f"targeting.kind: {chosen.kind}, but the dispatch has {'recipients' if targeting else 'no recipients'}"
        )
    yield "broadcast", int(isinstance(chosen, Broadcast))
    if targeting:
        yield names[ARRAYS[targeting.identified_by]], targeting.identifiers.values()
    elif isinstance(chosen, SavedSegments):
        yield names["segment_ids"], chosen.ids
    elif isinstance(chosen, ByConditions):
        yield "conditions", _conditions(chosen.where)


def _conditions(group: Conditions) -> dict[str, Any]:
    members = group.all or group.any or ()
    written = {str(number): _condition(member) for number, member in enumerate(members)}
    return {"operator": "AND" if group.all else "OR", **written}


def _condition(member: Condition | Conditions) -> Any:
    if isinstance(member, Conditions):
        return _conditions(member)
    return ["tags_attribute", "=", member.attribute, [member.field, member.comparison, member.value]]
