"""Makes a policy from its text, `NAME:parameter=value,…`; and lists all policies."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules

from receiver.errors import SettingsError
from receiver.policies.apama import ApamaTwoTier
from receiver.policies.interface import Limit, Parameter, Policy, Use, registered_policies


def _all_policies() -> tuple[type[Policy], ...]:
    """The policies of every file in this folder; TypeError if the `same_rule_as` of one names no policy."""
    for module in iter_modules(sys.modules[__package__].__path__):
        import_module(f"{__package__}.{module.name}")
    policies = registered_policies()
    names = {None, *(rule.name for rule in policies)}
    for rule in policies:
        if rule.declaration.same_rule_as not in names:
            raise TypeError(
                f"policy {rule.name} declares the rule of {rule.declaration.same_rule_as!r}, which isn't there"
            )
    return policies


POLICIES = _all_policies()
"""The classes of all policies, in the order of the tables that list them."""
_WHOLE = re.compile("[0-9]+")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")
_MOST = 10**12
"""The most ids, or seconds, that a text may give."""
_LONGEST_US = max(sum(p.is_time for p in rule.parameters) for rule in POLICIES) * _MOST * 1_000_000
"""The longest expiry among a policy's sizes: the sum of its times."""


def policy(text: str) -> Policy:
    """A new policy that has seen nothing yet.

    Args:
        text: Such as `artemis:id_cache_size=20000` or `perfect`. Times are in seconds. Parameters left out have the vendor's
            defaults.

    Raises:
        SettingsError: A name is unknown, or a value is missing or invalid.
    """
    rule, values = _read(text)
    for parameter in rule.parameters:
        if parameter.name not in values:
            if parameter.default is None:
                raise SettingsError(f"policy {text!r:.80} lacks {parameter.name}=", hint=f"write {_forms(rule.name)}")
            values[parameter.name] = parameter.default()
    return rule(**{p.argument: values[p.name] for p in rule.parameters})


def stated_policy(text: str) -> tuple[type[Policy], Policy | None]:
    """The class that a text names, and the policy; None if the text gives no sizes: then the domain's own apply."""
    rule, _ = _read(text)
    is_bare = ":" not in text and bool(rule.parameters)
    return rule, None if is_bare else policy(text)


def stated_policies(texts: Sequence[str]) -> list[Policy]:
    """The policies that texts name; `SettingsError` if `policy` refuses one, one can't be compared, or two are equal."""
    policies = [policy(text) for text in texts]
    for index, (text, stated) in enumerate(zip(texts, policies, strict=True)):
        refuse_unfit(type(stated), Use.COMPARISON, text)
        if text in texts[:index]:
            raise SettingsError(f"policy {text!r:.80} is given twice")
    return policies


def policy_of_kind(kind: str, window: int, expiry_us: int) -> Policy:
    """A new policy, by its name in stores, with these sizes; `SettingsError` if there is no such policy."""
    for candidate in POLICIES:
        if candidate.kind == kind and 0 <= window <= _MOST and 0 <= expiry_us <= _LONGEST_US:
            made = candidate.of_sizes(window, expiry_us)
            if made.sizes == (window, expiry_us):
                return made
    raise SettingsError(f"there is no policy {kind!r:.40} of {window} ids and {expiry_us} us")


def two_tier(window: int, expiry_us: int) -> Policy:
    """A policy with Apama's rule, the default of domains, whose sizes `simulate` recommends."""
    return ApamaTwoTier(window, expiry_us)


def refuse_unfit(rule: type[Policy], use: Use, text: str) -> None:
    """Raise `SettingsError` if the policy that a text names isn't fit for a use."""
    for refusal in rule.declaration.refusals:
        if refusal.use is use:
            raise SettingsError(f"policy {text!r:.80} can't be {use}, because {refusal.reason}", hint=refusal.hint)


def compared_by_default() -> dict[str, str]:
    """The policies that a comparison tries by default: each rule at each of its vendors' sizes. By text, the systems that have it.

    If the policy's name shows the system, none is named. Otherwise the rule's other names come before the systems.
    """
    return {
        str(policy(text_of(rule, vendor.sizes))): ""
        if rule.declaration.names_its_system
        else ", ".join(
            [*(other.name for other in POLICIES if other.declaration.same_rule_as == rule.name), str(vendor)]
        )
        for rule in POLICIES
        if rule.declaration.compiled_policy is not None and rule.declaration.same_rule_as is None
        for vendor in rule.declaration.vendors
        if vendor.is_tried and vendor.sizes is not None
    }


def fitted_policies(size_of: Callable[[Limit], int]) -> list[Policy]:
    """The policies with a single size that a log can size. `size_of` gives the size for a limit: ids, or microseconds.

    A policy with several times is left out: another policy has the same rule with their sum.
    """
    return [
        rule.of_sizes(size_of(limit), size_of(limit))  # it takes the size that its parameter stands for
        for rule in POLICIES
        if len(rule.parameters) == 1 and (limit := rule.declaration.limit)
    ]


def examples() -> list[str]:
    """The policies' texts with the sizes that vendors state."""
    return [
        text_of(rule, vendor.sizes)
        for rule in POLICIES
        for vendor in rule.declaration.vendors
        if vendor.sizes and vendor.is_tried and not vendor.sizes_are_ours
    ]


def form_of(rule: type[Policy], value: str = "") -> str:
    """How to write the policy, with `value` for each of its values."""
    return text_of(rule, ",".join(f"{p.name}={value}" for p in rule.parameters))


def text_of(rule: type[Policy], sizes: str) -> str:
    """The policy's text, with sizes in the form of such texts."""
    return f"{rule.name}:{sizes}" if sizes else rule.name


def _rules_of_system(alias: str) -> str:
    """The texts of the policies that a system follows, joined by "or"; empty for an unknown system."""
    return " or ".join(
        form_of(rule, "...") if vendor.sizes is None or vendor.sizes_are_ours else text_of(rule, vendor.sizes)
        for rule in POLICIES
        for vendor in rule.declaration.vendors
        if alias in vendor.aliases
    )


def _read(text: str) -> tuple[type[Policy], dict[str, int]]:
    """The class that a text names, and the values that it gives, by parameter; times in microseconds."""
    if not isinstance(text, str):
        raise SettingsError(f"policy must be text, not {text!r:.80}")
    name, colon, rest = text.partition(":")
    rules = [rule for rule in POLICIES if rule.name == name]
    if not rules:
        names = list(dict.fromkeys(rule.name for rule in POLICIES))
        meant = _rules_of_system(name.strip().lower())
        raise SettingsError(
            f"there is no policy {name!r:.40}", hint=f"write {meant}" if meant else _nearest(name, names)
        )
    given = _items(text, name, rest) if colon else {}
    # If two formulas share a name, take the one whose parameters are given.
    rule = next(
        (each for each in rules if each.parameters and set(given) == {p.name for p in each.parameters}), rules[0]
    )
    known = {p.name: p for p in rule.parameters}
    for key in given:
        if key not in known:
            hint = _nearest(key, list(known)) if known else f"{name} takes none"
            raise SettingsError(f"policy {name} has no parameter {key!r:.40}", hint=hint)
    return rule, {key: _value(name, known[key], value) for key, value in given.items()}


def _items(text: str, name: str, rest: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for item in rest.split(","):
        key, equals, value = item.partition("=")
        if not (key and equals and value):
            raise SettingsError(
                f"policy {text!r:.80}: {item!r:.40} is not of the form parameter=value", hint=f"write {_forms(name)}"
            )
        if key in given:
            raise SettingsError(f"policy {text!r:.80} gives {key} twice")
        given[key] = value
    return given


def _forms(name: str) -> str:
    rules = [rule for rule in POLICIES if rule.name == name]
    return " or ".join(form_of(rule, "...") for rule in rules)


def _nearest(name: str, names: list[str]) -> str:
    near = get_close_matches(name.strip().lower(), names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"choose from {', '.join(names)}"


def _value(name: str, parameter: Parameter, text: str) -> int:
    form, wanted = (_DECIMAL, "seconds, such as 300 or 0.5,") if parameter.is_time else (_WHOLE, "a whole number")
    # Stricter than Python: no sign, space, exponent, underscore, or digits of other scripts.
    if not form.fullmatch(text) or Decimal(text) > _MOST:
        raise SettingsError(f"policy {name}: {parameter.name} must be {wanted} from 0 to {_MOST:,}, not {text!r:.40}")
    return round(Decimal(text) * 1_000_000) if parameter.is_time else int(Decimal(text))
