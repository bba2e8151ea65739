"""The report of `receiver compare`: which policies stand out, what each costs, where they disagree and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from receiver.compare import Cause, Comparison, Dispute, PolicyFigures
from receiver.domains import DOMAIN_KEYS
from receiver.policies.names import POLICIES, compared_by_default, two_tier
from receiver.quantities import count, duration, seconds
from receiver.report import words
from receiver.report.document import Cells, Chart, Column, Document, Items, Lead, Only, Style, Table, Text, blocks

_SECTIONS = {
    "answer": "Whose rules should I take?",
    "policies": "",
    "findings": "What stands out",
    "costs": "",
    "causes": "",
    "disputes": "",
}
_WORDS = {
    "missed": "a duplicate that the policy would have let through as new",
    "false": "a receipt that the policy would have dropped as a duplicate, though its id never came before in the domain: a "
    "lost message",
    "memory": "what a receiver of this library takes for that many ids",
}
_FEW_POLICIES = 3
_LONGEST_LABEL = 48
_SIZED = frozenset(kind.name for kind in POLICIES if kind.parameters)


def comparison_document(comparison: Comparison) -> Document:
    log, key, policies = comparison.log, comparison.key, comparison.policies
    answer, *findings = standing_out(comparison)
    best = [policies[index].policy for index in sorted(best_of(comparison))[:_FEW_POLICIES]]
    leads = [Lead(f"{system_of(policy) or 'no system'}: {named_policy(policy)}") for policy in best]
    doubts = [words.sanitised(doubt.text, words.LONGEST_PARAGRAPH) for doubt in comparison.doubts]
    meanings = _meanings(comparison)
    notes = (_disagreement(comparison) if not comparison.disputes else "", *_notes(comparison))
    shown = [
        *blocks("", Text(words.reading(log), Style.PLAIN), only=Only.TERMINAL),
        *blocks("", *(Text(remark, Style.NOTE) for remark in words.remarks(log, key)), only=Only.TERMINAL),
        *blocks("answer", *leads, only=Only.PAGE),
        *blocks("answer", Text(answer, Style.PLAIN), Items("", doubts) if doubts else None),
        *blocks("answer", _recommended_words(comparison), only=Only.PAGE),
        *blocks("policies", _policies(comparison)),
        *blocks("", Text(_whose(comparison), Style.NOTE), only=Only.TERMINAL),
        *blocks("findings", Items(_SECTIONS["findings"], findings) if findings else None),
        *blocks("", *(Text(f"{cause}: {meaning}", Style.NOTE) for cause, meaning in meanings), only=Only.TERMINAL),
        *blocks("costs", _costs_chart(policies)),
        *blocks("causes", *_causes_charts(policies)),
        *blocks("disputes", _disputes(comparison) if comparison.disputes else None),
        *blocks("findings", *(Text(note, Style.PLAIN) for note in notes if note)),
    ]
    return Document("compare", "Whose rules fit this log?", log, key, _SECTIONS, shown, {**_WORDS, **dict(meanings)})


def _policies(comparison: Comparison) -> Table:
    policies, best = comparison.policies, best_of(comparison)
    fitted = {index for index, figures in enumerate(policies) if figures.is_fitted}
    signs = [
        (">", best, "never wrong, with the fewest ids"),
        ("*", {recommended_policy(comparison)} - {None}, "the two-tier setting recommended for this log"),
        ("+", fitted, _fitted_words(comparison)),
    ]
    notes = ["missed: let through; false: new messages dropped; memory: this package's"]
    notes += [f"{sign} {meaning}" for sign, indices, meaning in signs if indices]

    def number(index: int) -> str:
        return f"{''.join(sign for sign, indices, _ in signs if index in indices):<2}{index + 1:>3}"

    return Table.of(
        "The policies side by side",
        range(len(policies)),
        [
            (Column("", Cells.WORD), number),
            (Column("policy", Cells.POLICY), lambda index: named_policy(policies[index].policy)),
            (Column("system", Cells.TEXT, Only.PAGE), lambda index: system_of(policies[index].policy) or "-"),
            (Column("caught"), lambda index: count(policies[index].caught)),
            (Column("missed"), lambda index: count(policies[index].missed)),
            (Column("false"), lambda index: count(policies[index].false_duplicates)),
            (Column("most ids\nkept"), lambda index: count(policies[index].peak_ids)),
            (Column("memory", is_spare=True), lambda index: words.size(policies[index].memory_bytes)),
        ],
        marked=best,
        note="\n".join(notes),
    )


def _costs_chart(policies: Sequence[PolicyFigures]) -> Chart:
    return Chart(
        "memory-missed",
        "What catching more costs",
        "The most ids kept against the duplicates missed, by the policies' numbers. Of the green ones, which are never "
        "wrong, those further left cost less.",
        lambda charts: charts.memory_chart(policies),
    )


def _causes_charts(policies: Sequence[PolicyFigures]) -> Iterator[Chart]:
    names = [with_number(index, figures) for index, figures in enumerate(policies)]
    missed = zip(names, (figures.missed_causes for figures in policies), strict=True)
    yield from _causes_chart("missed-causes", "Why duplicates are missed", missed)
    false = zip(names, (figures.false_causes for figures in policies), strict=True)
    yield from _causes_chart("false-causes", "Why new messages are taken for duplicates", false)


def _causes_chart(id_: str, title: str, causes: Iterable[tuple[str, dict[Cause, int]]]) -> Iterator[Chart]:
    """The chart; none if no policy is wrong in this way."""
    wrong = {name: counts for name, counts in causes if any(counts.values())}
    if wrong:
        numbers = Table.of(
            title,
            list(wrong),
            [
                (Column("policy", Cells.TEXT), str),
                (Column("receipts"), lambda name: count(sum(wrong[name].values()))),
                (Column("by cause", Cells.TEXT), lambda name: _counted(wrong[name])),
            ],
        )
        caption = "Receipts by policy and cause; the causes are explained below."
        yield Chart(id_, title, caption, lambda charts: charts.causes_chart(wrong), numbers)


def _disputes(comparison: Comparison) -> Table:
    return Table.of(
        _disagreement(comparison),
        comparison.disputes,
        [
            (Column("row"), lambda dispute: str(dispute.row)),
            (Column("id", Cells.NAME), lambda dispute: words.sanitised(dispute.unique_message_id, words.LONGEST_NAME)),
            (Column("source", Cells.NAME, Only.PAGE), lambda dispute: words.named_source(dispute.message_source_id)),
            (Column("domain", Cells.NAME, Only.PAGE), lambda dispute: words.named_domain(dispute.domain)),
            (Column("age"), lambda dispute: words.or_dash(dispute.age_us, duration)),
            (Column("duplicate", Cells.TEXT), lambda dispute: sides(dispute)[0] or "-"),
            (Column("new", Cells.TEXT), lambda dispute: sides(dispute)[1] or "-"),
            (Column("received, UTC", Cells.TEXT, Only.PAGE), lambda dispute: words.second(dispute.received_at_us)),
        ],
        note="row: the receipt's number in the log, from 0; age: time since the id last came; duplicate and new: the policies "
        "that say so, by their numbers above, and why the wrong ones are wrong.",
    )


def _recommended_words(comparison: Comparison) -> str:
    index = recommended_policy(comparison)
    if index is None or comparison.recommendation is None:
        return ""
    setting = comparison.recommendation.setting
    why = words.sanitised(comparison.recommendation.explanation, words.LONGEST_PARAGRAPH)
    return (
        f"Policy {index + 1} is the two-tier setting recommended for this log, W = {count(setting.window)} with "
        f"E = {seconds(setting.expiry_us)}. {why}"
    )


def named_policy(policy: str) -> str:
    """A policy's text, sanitised and shortened."""
    return words.sanitised(policy, words.LONGEST_NAME)


def with_number(index: int, figures: PolicyFigures) -> str:
    """A policy's text behind its number, which distinguishes equal texts."""
    return f"{index + 1}. {words.sanitised(figures.policy, _LONGEST_LABEL)}"


def best_of(comparison: Comparison) -> frozenset[int]:
    """The indices of the policies that are never wrong and keep the fewest ids; empty if the log has no duplicate."""
    right = _right(comparison) if comparison.log.duplicates else []
    least = min((figures.peak_ids for _, figures in right), default=0)
    return frozenset(index for index, figures in right if figures.peak_ids == least)


def _right(comparison: Comparison) -> list[tuple[int, PolicyFigures]]:
    policies = enumerate(comparison.policies)
    return [(index, figures) for index, figures in policies if not figures.missed and not figures.false_duplicates]


def recommended_policy(comparison: Comparison) -> int | None:
    """The index of the policy with the recommended two-tier setting; None if that setting wasn't compared."""
    if comparison.recommendation is None:
        return None
    wanted = str(two_tier(*comparison.recommendation.setting.pair))
    return next((index for index, figures in enumerate(comparison.policies) if figures.policy == wanted), None)


def _fitted_words(comparison: Comparison) -> str:
    """The meaning of a policy fitted to the log, with the margin; empty if no policy is."""
    if comparison.recommendation is None or not any(figures.is_fitted for figures in comparison.policies):
        return ""
    return f"fitted to this log: {comparison.recommendation.margin:g} times the least that misses nothing, rounded up"


def system_of(policy: str) -> str:
    """The systems that have a policy's rule with these sizes; empty for sizes that no vendor states."""
    kind = next((kind for kind in POLICIES if kind.name == policy.partition(":")[0]), None)
    if kind is not None and kind.declaration.names_its_system:
        return ", ".join(kind.declaration.vendors[0].systems)
    return compared_by_default().get(policy, "")


def _whose(comparison: Comparison) -> str:
    """The systems of policies that aren't named after them: `5: SQS FIFO; 8: Pulsar, RabbitMQ streams`."""
    systems = [compared_by_default().get(figures.policy) for figures in comparison.policies]
    return "; ".join(f"{number}: {system}" for number, system in enumerate(systems, 1) if system)


def standing_out(comparison: Comparison) -> list[str]:
    """Which policies are never wrong, always the first text; how others are wrong; which never reached their limits."""
    blame = (_blame(figures, comparison) for figures in comparison.policies)
    return list(filter(None, (_praise(comparison), *blame, _untried(comparison))))


def _praise(comparison: Comparison) -> str:
    if not comparison.log.duplicates:
        return "The log holds no duplicate, so it can't tell what a policy would miss."
    right = _right(comparison)
    if not right:
        return "No policy catches every duplicate without taking a new message for one."
    if len(right) == 1:
        _, best = right[0]
        who = named_policy(best.policy) if len(comparison.policies) == 1 else f"Only {named_policy(best.policy)}"
        return f"{who} catches every duplicate and takes no new message for one. It keeps at most {count(best.peak_ids, 'id')}."
    names = [named_policy(figures.policy) for index, figures in right if index in best_of(comparison)]
    least = min(figures.peak_ids for _, figures in right)
    keep = "keeps" if len(names) == 1 else "keep"
    return (
        f"{count(len(right))} of {count(len(comparison.policies))} policies catch every duplicate and take no new message for "
        f"one. Of these, {words.listed(names)} {keep} the fewest ids: {count(least)}."
    )


def _blame(figures: PolicyFigures, comparison: Comparison) -> str:
    said = []
    if figures.missed:
        missed = words.of_duplicates(figures.missed, comparison.log.duplicates)
        said.append(f"misses {missed}: {_counted(figures.missed_causes)}")
    if figures.false_duplicates:
        said.append(
            f"takes {count(figures.false_duplicates, 'new message')} for duplicates, which loses them: "
            f"{_counted(figures.false_causes)}"
        )
    return f"{named_policy(figures.policy)} {'; it '.join(said)}." if said else ""


def _untried(comparison: Comparison) -> str:
    """Name the policies that never had to forget an id, so that this log doesn't show what they would miss.

    Policies fitted to the log aren't among them: their size comes from the log.
    """
    log = comparison.log
    ids = log.receipts - log.unchecked - log.duplicates
    tried = [of for of in comparison.policies if of.policy.partition(":")[0] in _SIZED and not of.is_fitted]
    kept_all = [of.policy for of in tried if of.peak_ids == ids and not of.missed]
    if not (kept_all and log.duplicates):
        return ""
    return (
        f"{words.listed(map(named_policy, kept_all))} never had to forget an id here, so this log can't tell what "
        f"{'it' if len(kept_all) == 1 else 'they'} would miss. Try a longer one, or one that holds an outage."
    )


def _counted(causes: dict[Cause, int]) -> str:
    """The causes with their counts, most frequent first: `25 not refreshed, 12 evicted`."""
    most_first = sorted(causes.items(), key=lambda item: -item[1])
    return ", ".join(f"{count(number)} {cause}" for cause, number in most_first if number)


def _meanings(comparison: Comparison) -> list[tuple[str, str]]:
    """The causes that occur in the comparison, each with its meaning."""
    counted = [causes for each in comparison.policies for causes in (each.missed_causes, each.false_causes)]
    return [(str(cause), cause.meaning) for cause in Cause if any(causes.get(cause) for causes in counted)]


def _disagreement(comparison: Comparison) -> str:
    """On how many receipts the policies disagree, and how many of these are shown; empty for a single policy."""
    if len(comparison.policies) == 1:
        return ""
    if not comparison.disputed:
        return f"All {count(len(comparison.policies))} policies say the same of every receipt."
    disputed, shown = comparison.disputed, len(comparison.disputes)
    which = "" if disputed == shown else f", of which these {count(shown)} show how"
    return f"The policies disagree on {count(disputed, 'receipt')}{which}."


def sides(dispute: Dispute) -> tuple[str, str]:
    """The numbers of the policies that decide duplicate, and of those that decide new. Wrong decisions have their causes."""
    by_verdict: dict[bool, list[tuple[int, Cause | None]]] = {True: [], False: []}
    for number, (is_duplicate, cause) in enumerate(zip(dispute.duplicate_by, dispute.causes, strict=True), 1):
        by_verdict[is_duplicate].append((number, cause))
    return _numbered(by_verdict[True]), _numbered(by_verdict[False])


def _numbered(policies: list[tuple[int, Cause | None]]) -> str:
    """Policy numbers as `1-3, 5` or `4-5 expired, 7 evicted`; neighbouring numbers with one cause are a range."""
    runs: list[tuple[int, int, Cause | None]] = []
    for number, cause in policies:
        if runs and runs[-1][1:] == (number - 1, cause):
            runs[-1] = runs[-1][0], number, cause
        else:
            runs.append((number, number, cause))
    numbers = ((f"{first}" if first == last else f"{first}-{last}", cause) for first, last, cause in runs)
    return ", ".join(f"{number} {cause}" if cause else number for number, cause in numbers)


def _notes(comparison: Comparison) -> list[str]:
    """Notes on what the figures leave out: repeats across domains, and policies that can't judge the log."""
    said = []
    if comparison.crossed_domains:
        text = (
            f"Receipts that are new in their domain, but whose id came before in another one: "
            f"{count(comparison.crossed_domains)}. The domain key '{words.sanitised(comparison.key)}' keeps these apart, so no policy "
            "can catch them."
        )
        if comparison.key in DOMAIN_KEYS and "connection_id" in DOMAIN_KEYS[comparison.key].needs:
            text += " If several connections read one queue, share one domain: --domain destination."
        said.append(text)
    said += [
        f"{named_policy(policy)} is left out: {words.sanitised(reason, 1_000)}"
        for policy, reason in comparison.left_out
    ]
    return said
