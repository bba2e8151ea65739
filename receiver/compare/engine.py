"""Judges one log by several policies: it is read, numbered and split into domains only once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.compare import Cause, ComparedDomain, Comparison, PolicyFigures
from receiver.compare.compiled_policies import CompiledPolicy, Judged, compiled_policy_of
from receiver.compare.disputes import CAUSES, Disputes, missed_causes
from receiver.errors import IdFormatError
from receiver.policies.interface import Policy
from receiver.policies.names import compared_by_default, fitted_policies, policy, stated_policies, two_tier
from receiver.settings import CompareSettings, ReceiverSettings
from receiver.simulate.analysis import analyse
from receiver.simulate.compiled import in_threads
from receiver.simulate.figures import Kind
from receiver.simulate.findings import DOUBTS
from receiver.simulate.question import Question
from receiver.simulate.recommend import elsewhere_with_margin
from receiver.simulate.whole import WholeLog, log_figures, receipt_batches, split_domains, verdict_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from receiver.simulate.figures import Finding, Recommendation
    from receiver.simulate.ingest import Receipts
    from receiver.simulate.whole import Domain


class Compared(NamedTuple):
    comparison: Comparison
    is_duplicate: npt.NDArray[np.bool_] | None
    """[policy, receipt of the log]; None unless verdicts were asked for."""


@dataclass(slots=True)
class _Contender:
    """One policy, and why it has missed duplicates so far."""

    text: str
    policy: Policy
    compiled_policy: CompiledPolicy
    bytes_per_id: int
    is_fitted: bool = False
    missed: Counter[Cause] = field(default_factory=Counter)

    def count(self, domain: Domain, judged: Judged) -> tuple[int, int, int]:
        """Add a domain's misses. Returns the duplicates caught, the false duplicates, and the peak of ids."""
        came_before = domain.rows.earlier >= 0
        missed = np.flatnonzero(came_before & ~judged.is_duplicate)
        causes = np.bincount(missed_causes(self.policy, domain.rows, judged, missed), minlength=len(CAUSES))
        self.missed.update({cause: count for cause, count in zip(CAUSES, causes.tolist(), strict=True) if count})
        caught = domain.rows.duplicates - len(missed)
        return caught, int(np.count_nonzero(judged.is_duplicate)) - caught, judged.peak_ids

    def figures(self, caught: int, false: int, peak_ids: int) -> PolicyFigures:
        """The policy's figures, from the results of `count` added up over all domains."""
        false_cause = self.policy.declaration.false_cause
        return PolicyFigures(
            policy=self.text,
            caught=caught,
            missed=self.missed.total(),
            false_duplicates=false,
            peak_ids=peak_ids,
            memory_bytes=peak_ids * self.bytes_per_id,
            missed_causes=dict(self.missed),
            false_causes={false_cause: false} if false_cause and false else {},
            is_fitted=self.is_fitted,
        )


@dataclass(frozen=True, slots=True)
class _Contest:
    """The policies that are compared, and the domains that each of them judges."""

    contenders: list[_Contender]
    domains: list[Domain]
    recommendation: Recommendation | None = None
    left_out: list[tuple[str, str]] = field(default_factory=list)
    doubts: tuple[Finding, ...] = ()


def compare_policies(
    receipts: Receipts,
    key: str,
    texts: Sequence[str] = (),
    *,
    with_verdicts: bool = False,
    advance: Callable[[int], None] | None = None,
) -> Compared:
    """The results of each policy on a log, whose domains were named by `key`, and where the policies disagree.

    Without `texts`, the policies are: every policy that can judge the log's ids, at its vendors' sizes; those that the log can
    size, at the log's need with the margin; and the two-tier setting recommended for the log. `SettingsError` if
    `stated_policies` refuses a text; `IdFormatError` if a named policy can't judge an id of the log. `advance` is called with 1
    for each domain that is done.
    """
    contest = _asked_for(receipts, texts) if texts else _all_that_can(receipts, key)
    contenders = contest.contenders
    is_duplicate = np.zeros((len(contenders), len(receipts.received_at_us)), np.bool_) if with_verdicts else None
    disputes = Disputes(receipts, [contender.policy for contender in contenders])
    domains: list[ComparedDomain] = []
    for domain in contest.domains:
        judged = _judge(domain, contenders)
        counted = [contender.count(domain, each) for contender, each in zip(contenders, judged, strict=True)]
        domains.append(
            ComparedDomain(domain.name, domain.receipts, domain.rows.duplicates, *zip(*counted, strict=True))
        )
        if is_duplicate is not None:
            for index, each in enumerate(judged):
                is_duplicate[index, domain.log_rows] = each.is_duplicate
        disputes.add(domain, judged)
        if advance:
            advance(1)
    return Compared(_comparison(receipts, key, contest, domains, disputes), is_duplicate)


def _comparison(
    receipts: Receipts, key: str, contest: _Contest, domains: Sequence[ComparedDomain], disputes: Disputes
) -> Comparison:
    """Add up the domains that were judged."""
    counted = [(each.caught, each.false_duplicates, each.peak_ids) for each in domains]
    sums = np.array(counted, np.int64).sum(axis=0).T.tolist()  # for each policy
    return Comparison(
        key=key,
        log=log_figures(receipts, contest.domains),
        policies=tuple(each.figures(*own) for each, own in zip(contest.contenders, sums, strict=True)),
        domains=tuple(domains),
        disputed=disputes.count,
        disputes=disputes.shown(),
        # Receipts that are new in their domain, except the first of each id in the log. One of the texts is the missing id.
        crossed_domains=sum(len(each.log_rows) - each.rows.duplicates for each in contest.domains)
        - receipts.ids.count
        + 1,
        left_out=tuple(contest.left_out),
        recommendation=contest.recommendation,
        doubts=contest.doubts,
    )


def _judge(domain: Domain, contenders: Sequence[_Contender]) -> list[Judged]:
    return in_threads(lambda contender: contender.compiled_policy(domain), contenders, rows=len(domain.log_rows))


def _asked_for(receipts: Receipts, texts: Sequence[str]) -> _Contest:
    contenders = []
    for text, stated in zip(texts, stated_policies(texts), strict=True):
        try:
            contenders.append(_contender(text, stated, receipts))
        except IdFormatError as error:
            raise IdFormatError(
                f"policy {text!r:.80} can't judge this log: {error.message}", hint=error.hint
            ) from error
    return _Contest(contenders, list(split_domains(receipts)))


def _all_that_can(receipts: Receipts, key: str) -> _Contest:
    """The policies to compare if none was named."""
    window, expiry_us = ReceiverSettings().sizes  # a grid of one setting: only the needs are wanted
    question = Question(key, [window], [expiry_us])
    log = WholeLog(receipts, max_missed=question.settings.max_missed)
    analysis = analyse(log, question)
    recommendation = analysis.recommendation
    needs = analysis.elsewhere  # None if the log has no duplicate
    fitted: list[str] = []
    if needs is not None:
        sized = fitted_policies(elsewhere_with_margin(needs, recommendation.margin).of)
        fitted = [*map(str, sized), str(two_tier(*analysis.of(Kind.BOTH).setting.pair))]
    texts = [*compared_by_default(), *fitted, str(two_tier(*recommendation.setting.pair))]
    doubts = tuple(finding for finding in analysis.findings if finding.id in DOUBTS)
    contest = _Contest([], log.domains, recommendation, doubts=doubts)
    for text in dict.fromkeys(texts):
        try:
            contest.contenders.append(_contender(text, policy(text), receipts, is_fitted=text in fitted))
        except IdFormatError as error:
            contest.left_out.append((text, str(error)))
    return contest


def _contender(text: str, stated: Policy, receipts: Receipts, *, is_fitted: bool = False) -> _Contender:
    compiled_policy = compiled_policy_of(stated, receipts)
    return _Contender(text, stated, compiled_policy, CompareSettings().memory_bytes(stated.name, 1), is_fitted)


def verdict_batches(receipts: Receipts, compared: Compared) -> Iterator[pa.RecordBatch]:
    """A row for each receipt, in the order of the log; a column for each policy, named by its text (see `verdict_schema`).

    Needs a comparison `with_verdicts`.
    """
    assert compared.is_duplicate is not None  # noqa: S101 - whoever asks for verdicts has said so before
    schema = verdict_schema([figures.policy for figures in compared.comparison.policies])
    return receipt_batches(receipts, compared.is_duplicate, schema)
