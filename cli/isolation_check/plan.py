"""Which checks there are for what was given: two tenants, perhaps the operator's token, an adapter, HTTP."""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import click

from cli.admin_client import AdminClient, admin_client
from cli.admin_client.adapter_calls import AdapterName
from cli.isolation_check.checks.adapters import AdapterCheck, RevisionCheck, wait_for_answer
from cli.isolation_check.checks.base import Check
from cli.isolation_check.checks.claims import ClaimCheck
from cli.isolation_check.checks.names import NameCheck
from cli.isolation_check.checks.prefixes import PublicPrefixCheck
from cli.isolation_check.checks.scopes import ScopeCheck
from cli.isolation_check.checks.tenants import TenantCheck
from cli.isolation_check.checks.timing import TimingCheck
from cli.isolation_check.checks.versions import VersionCheck
from cli.isolation_check.grpc_probe import GrpcProbe
from cli.isolation_check.http_probe import HttpProbe
from cli.isolation_check.operator import Operator
from cli.isolation_check.probes import Pair, Probe, Question
from cli.isolation_check.prompts import Prompts, vocabulary_of
from cli.isolation_check.running import stage_of
from cli.isolation_check.verdicts import Evidence, Skipped
from cli.progress import Reporter
from cli.target import Target

NAMES = ("tenant", "scope", "adapter", "names", "claims", "version", "revision", "public", "timing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was asked for."""

    target: Target
    http: str | None = None
    keys: tuple[str, str] | None = None  # of two tenants; None: tenants are made for the time of the checks
    model: str = ""
    adapter: str = ""
    adapter_folders: tuple[str, str] | None = None
    admin_token: str | None = None
    prompt_tokens: int = 256
    pairs: int = 40
    rounds: int = 3
    checks: Collection[str] = NAMES

    @property
    def needs_adapter(self) -> bool:
        """Whether a check wants an adapter of one of the tenants, and none was named."""
        return not self.adapter and not {"adapter", "names"}.isdisjoint(self.checks)


class Unavailable:
    """A check that cannot be made, and why. Fits Check."""

    def __init__(self, name: str, over: str, needs: str) -> None:
        self.name = name
        self.over = over
        self._needs = needs

    def run(self, evidence: Evidence) -> None:
        raise Skipped(self._needs)


@contextmanager
def planned(
    wanted: Wanted, reporter: Reporter, warn: Callable[[str], None], random_: random.Random
) -> Iterator[list[Check]]:
    """Provide the checks, ready to run; what they need is there as long as the context lasts. Raises grpc.RpcError."""
    with ExitStack() as stack:
        channel = stack.enter_context(wanted.target.channel([("grpc.use_local_subchannel_pool", 1)]))
        operator = None
        if wanted.admin_token is not None:
            client: AdminClient = stack.enter_context(admin_client(wanted.target, wanted.admin_token))
            operator = Operator(client, warn)
        keys = wanted.keys or _guests(operator, random_, stack)
        scout = GrpcProbe(channel, keys[0], wanted.model)
        model = wanted.model or _only_model(scout)
        context_length = _context_length(scout, model)
        vocabulary = vocabulary_of(scout.tokens_of, context_length, random_)
        # Twice as much, and a token, must fit the context: prompts stand behind public prefixes, too.
        prompts = Prompts(vocabulary, min(wanted.prompt_tokens, context_length // 2 - 1), random_)

        def probe_of(key: str) -> Probe:
            return GrpcProbe(channel, key, model)

        def pairs_of(keys: Sequence[str]) -> list[Pair]:
            pairs = [Pair(*map(probe_of, keys))]
            if wanted.http is not None:
                pairs.append(Pair(*(HttpProbe(wanted.http, key, model, wanted.target.tls) for key in keys)))
            return pairs

        pairs = with_adapter = pairs_of(keys)
        if operator is not None and wanted.adapter_folders is not None and wanted.needs_adapter:
            one, other = (stack.enter_context(operator.guest(prompts.name(name))) for name in ("owner", "stranger"))
            which = AdapterName(prompts.name("adapter"), model, (one.tenant_id,))
            stack.enter_context(operator.adapter(which, wanted.adapter_folders[0]))
            with_adapter = pairs_of((one.key, other.key))
            wait_for_answer(with_adapter[0].mine, Question(prompts.fresh(), adapter=which.name))
        plan = _Plan(wanted, model, prompts, operator, probe_of, reporter)
        yield [check for check in plan.checks(pairs, with_adapter) if check.name in wanted.checks]


@dataclass(frozen=True, slots=True)
class _Plan:
    wanted: Wanted
    model: str
    prompts: Prompts
    operator: Operator | None
    probe_of: Callable[[str], Probe]
    reporter: Reporter

    def checks(self, pairs: list[Pair], with_adapter: list[Pair]) -> Iterator[Check]:
        """`with_adapter`: the same for two tenants of whom one has an adapter; they may be the same tenants."""
        wanted, prompts = self.wanted, self.prompts
        for pair, adapted in zip(pairs, with_adapter, strict=True):
            yield TenantCheck(pair, prompts, wanted.rounds)
            yield ScopeCheck(pair.mine, prompts, wanted.rounds)
            yield AdapterCheck(adapted.mine, wanted.adapter, prompts, wanted.rounds)
            yield NameCheck(adapted, wanted.adapter, prompts)
            yield ClaimCheck(pair.mine, prompts)
        yield from self._operators_checks(pairs)
        timed = pairs[0]
        stage = stage_of(TimingCheck.name, timed.over)
        yield TimingCheck(timed, prompts, wanted.pairs, lambda fraction: self.reporter.report(stage, fraction))

    def _operators_checks(self, pairs: list[Pair]) -> Iterator[Check]:
        needs = "needs the admin token: --admin-token-file"
        first = pairs[0]
        if self.operator is None:
            for name in ("version", "revision", "public"):
                yield Unavailable(name, first.over, needs)
            return
        yield VersionCheck(self.operator, self.probe_of, first.others, self.prompts)
        if self.wanted.adapter_folders is None:
            yield Unavailable("revision", first.over, "needs two adapters of the model: --adapter-folder, twice")
        else:
            folders = self.wanted.adapter_folders
            yield RevisionCheck(self.operator, self.probe_of, self.model, folders, self.prompts)
        for pair in pairs:
            yield PublicPrefixCheck(self.operator, pair, self.model, self.prompts)


def _guests(operator: Operator | None, random_: random.Random, stack: ExitStack) -> tuple[str, str]:
    """Make two tenants for as long as the stack is open, and return their keys."""
    if operator is None:
        raise click.UsageError(
            "give the keys of two tenants (--key, --other-key), or the admin token to have two made for the check"
        )
    nonce = f"{random_.getrandbits(48):012x}"
    one, other = (stack.enter_context(operator.guest(f"isolation-check-{nonce}-{name}")) for name in ("a", "b"))
    return one.key, other.key


def _only_model(probe: GrpcProbe) -> str:
    models = sorted(probe.models())
    if len(models) != 1:
        raise click.UsageError(f"name one of the models with --model: {', '.join(models) or 'none is served'}")
    return models[0]


def _context_length(probe: GrpcProbe, model: str) -> int:
    context_length = probe.models().get(model)
    if context_length is None:
        raise click.UsageError(f"model {model!r} does not exist for the tenant of --key")
    return context_length
