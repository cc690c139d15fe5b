"""Schemas of tokens, namespaces and the audit log, for validation and for OpenAPI."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, WithJsonSchema, model_validator

from elasticdl_api.schemas.field_rules import ROOT_PATTERN
from elasticdl_api.schemas.moments import Moment
from elasticdl_api.schemas.numbers import Whole, WholeNumbers
from elasticdl_api.schemas.paging import NEXT_PAGE
from elasticdl_core.access import NAMESPACE_PATTERN, USER_PATTERN, TokenScope
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.path_policy import check_root

SOURCE_PATTERN = r"^[a-z0-9]([-a-z0-9_]{0,38}[a-z0-9])?$"
"""The name of a source, which no address is like."""
TOKEN_NAME_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9._]{0,62}[A-Za-z0-9])?$"
LONGEST_LIFE_S = 10 * 366 * 86400

NamespaceName = Annotated[str, Field(pattern=NAMESPACE_PATTERN, examples=["team-a"])]
SourceName = Annotated[str, Field(pattern=SOURCE_PATTERN, examples=["shop"])]
UserName = Annotated[str, Field(pattern=USER_PATTERN, examples=["ada"])]


class TokenRequest(WholeNumbers):
    """The token to make."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"name": "ada-laptop", "scope": "submit"}}
    )

    name: str = Field(
        pattern=TOKEN_NAME_PATTERN,
        description="Its name, or purpose; no other token of the namespace has that name.",
        examples=["ada-laptop"],
    )
    scope: TokenScope = Field(default=TokenScope.READ, description="The rights of its holder.")
    namespace: NamespaceName | None = Field(
        default=None, description="The only namespace that its holder sees; that of the caller by default."
    )
    of_cluster: StrictBool = Field(
        default=False, description="Of no namespace: its holder sees all of them. Instead of a namespace."
    )
    owner: UserName | None = Field(
        default=None,
        description="The user who will hold it, and own what is submitted with it; the caller by default.",
    )
    expires_in_s: Whole | None = Field(
        default=None,
        ge=60,
        le=LONGEST_LIFE_S,
        description="Seconds for which it is valid; until it is revoked if null.",
    )


class TokenResponse(BaseModel):
    """A token as it stands; the token itself is shown once only, when it is made."""

    id: str = Field(examples=["tok-7f3kq2mx"])
    name: str = Field(examples=["ada-laptop"])
    owner: str = Field(examples=["ada"])
    namespace: str | None = Field(description="The only one that its holder sees; null: all of them.")
    scope: TokenScope
    state: str = Field(description="valid, expired or revoked.", examples=["valid"])
    created_at: Moment
    created_by: str = Field(description="The user who made it.", examples=["admin"])
    expires_at: Moment | None
    last_used_at: Moment | None = Field(description="When it was last used, to about a minute; null: never.")
    revoked_at: Moment | None


class NewTokenResponse(TokenResponse):
    """A new token."""

    token: str = Field(description="Keep it: it is not shown again.", examples=["edl_..."])


class TokenPageResponse(BaseModel):
    """One page of tokens, the newest first."""

    tokens: list[TokenResponse]
    next_page_token: str | None = NEXT_PAGE


def _root(text: str) -> str:
    try:
        check_root(text)
    except InvalidInputError as error:
        raise ValueError(f"{error.message}; {error.fix}") from None
    return str(PurePosixPath(text)) if text.startswith("/") else text


DataRoot = Annotated[
    str,
    Field(min_length=1, max_length=1000, json_schema_extra={"pattern": ROOT_PATTERN}),
    AfterValidator(_root),
]


class NamespaceLimits(WholeNumbers):
    """Limits of a namespace; those that are not given are as for everybody."""

    model_config = ConfigDict(extra="forbid")

    requests_per_second: Whole | None = Field(default=None, ge=1, le=100_000, description="Of each token.")
    disk_mib: Whole | None = Field(
        default=None, ge=0, le=1 << 40, description="MiB that its jobs and bundles may fill; 0 for no limit."
    )
    max_ps: Whole | None = Field(default=None, ge=1, le=1000, description="Parameter servers of each job.")
    max_streams: Whole | None = Field(default=None, ge=0, le=100_000, description="Live streams of each token.")
    max_priority: Whole | None = Field(
        default=None, ge=-1000, le=1000, description="Highest priority of its jobs, from now on."
    )
    weight: Whole | None = Field(default=None, ge=1, le=1000, description="Its share of slots beside others.")
    guaranteed_slots: Whole | None = Field(
        default=None, ge=1, le=1_000_000, description="Slots that it always gets back from others."
    )
    max_slots: Whole | None = Field(
        default=None, ge=1, le=1_000_000, description="Slots that it never exceeds, even while the cluster is idle."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.guaranteed_slots is not None and self.guaranteed_slots > (self.max_slots or self.guaranteed_slots):
            raise ValueError(
                f"guaranteed_slots {self.guaranteed_slots} are above max_slots {self.max_slots}; "
                "guarantee no more than the limit"
            )
        return self


_LONGEST_ADDRESS = 1000
_ADDRESS_PATTERN = (
    r"^(sqlite:///[^?#\x00-\x1f\x7f]+"
    r"|postgresql://[^/?#\x00-\x1f\x7f]*/+[^/?#\x00-\x1f\x7f][^#\x00-\x1f\x7f]*)$"
)
_ADDRESS = {"type": "string", "maxLength": _LONGEST_ADDRESS, "pattern": _ADDRESS_PATTERN}


def _source(url: str) -> str:
    """The address of a source; what is wrong with it is told without it, as it may hold a password."""
    if len(url) <= _LONGEST_ADDRESS and re.fullmatch(_ADDRESS_PATTERN, url):
        named = parse_qs(urlsplit(url).query, keep_blank_values=True)
        if not any("pass" in one.lower() for one in named):
            return url
    raise ValueError(
        "a source is sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE, with the password there or in the "
        "api's ~/.pgpass"
    )


SourceAddress = Annotated[str, AfterValidator(_source), WithJsonSchema(_ADDRESS)]
Sources = Annotated[
    dict[SourceName, SourceAddress | None],
    Field(max_length=100),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": 100,
            "propertyNames": {"pattern": SOURCE_PATTERN},
            "additionalProperties": {"anyOf": [_ADDRESS, {"type": "null"}]},
        }
    ),
]


class NamespaceRequest(BaseModel):
    """The wanted state of a namespace."""

    model_config = ConfigDict(extra="forbid")

    data_roots: list[DataRoot] | None = Field(
        default=None,
        max_length=100,
        description="Roots of its jobs' data besides their own folder: absolute paths, beginnings of URLs; "
        "as it was if null, and nowhere at first.",
        examples=[["/data/team-a"]],
    )
    limits: NamespaceLimits | None = Field(default=None, description="As they were if null.")
    sources: Sources | None = Field(
        default=None,
        description="Databases that its statements may read, by the names that users say: "
        "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE, of a user who may only read. They are added to "
        "those that there are, null removes one, and no answer tells an address.",
        examples=[{"shop": "postgresql://reader:secret@db.example/shop"}],
    )


class NamespaceResponse(BaseModel):
    """A namespace."""

    name: str = Field(examples=["team-a"])
    created_at: Moment
    data_roots: list[str] = Field(examples=[["/data/team-a"]])
    limits: dict[str, Any] = Field(examples=[{"max_streams": 20}])
    sources: list[str] = Field(
        description="Names of the databases that its statements may read.", examples=[["shop"]]
    )
    jobs: int = Field(description="Jobs in it, in any state.")
    tokens: int = Field(description="Tokens of it that are valid.")


class NamespaceList(BaseModel):
    """The namespaces that the caller sees, by name."""

    namespaces: list[NamespaceResponse]


class WhoAmIResponse(BaseModel):
    """The caller's identity and rights."""

    user: str = Field(examples=["ada"])
    namespace: str | None = Field(description="The only one that the caller sees; null: all of them.")
    home: str = Field(description="The namespace that what the caller submits belongs to.", examples=["team-a"])
    scope: TokenScope
    token_id: str = Field(examples=["tok-7f3kq2mx"])
    expires_at: Moment | None = Field(description="When the token ends; null: when it is revoked.")


class SessionResponse(BaseModel):
    """The session of a browser."""

    user: str = Field(examples=["ada"])
    namespace: str | None = Field(description="The only one that the user sees; null: all of them.")
    scope: TokenScope
    expires_at: Moment | None = Field(description="When it ends by itself; sooner if its token ends.")
    csrf_token: str = Field(description="Send it as X-CSRF-Token with what changes something.")


class VersionResponse(BaseModel):
    """The version of the api."""

    version: str = Field(description="Of ElasticDL.", examples=["0.2.0"])
    python: str = Field(examples=["3.12.3"])


class AuditEntryResponse(BaseModel):
    """A change that a user made."""

    id: int
    at: Moment
    actor: str = Field(description="Whose token it was.", examples=["ada"])
    token_id: str
    namespace: str | None = Field(description="Of what was changed; null: of the cluster.")
    action: str = Field(examples=["job.cancel"])
    target: str = Field(examples=["digits-x7k2p9"])
    detail: dict[str, Any] = Field(examples=[{"priority": 7}])
    request_id: str


class AuditPageResponse(BaseModel):
    """One page of the audit log, the latest first."""

    entries: list[AuditEntryResponse]
    next_page_token: str | None = NEXT_PAGE


class OidcProviderResponse(BaseModel):
    """An identity provider (OpenID Connect), as a page needs it for the authorization code flow with PKCE."""

    issuer: str = Field(
        description="Its description is below it, at /.well-known/openid-configuration.",
        examples=["https://accounts.example.org"],
    )
    client_id: str = Field(description="The identifier of the page there.", examples=["elasticdl"])


class ProvidersResponse(BaseModel):
    """The providers where a browser can log in."""

    oidc: OidcProviderResponse | None = Field(description="Null where tokens of the cluster are all there is.")
