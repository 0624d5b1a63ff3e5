"""Search spaces as those of ConfigSpace, and back: conditions and categories included."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedhpo_gym.core.errors import InvalidArgumentError, require_optional
from fedhpo_gym.space.dimension import Dimension, Kind, Value
from fedhpo_gym.space.space import SearchSpace

if TYPE_CHECKING:
    import ConfigSpace

OWN = ("bins", "scope", "unit")
"""What ConfigSpace has no place for; its `meta` keeps it."""


def to_configspace(
    space: SearchSpace, seed: int | None = None, default: Mapping[str, Value] | None = None
) -> "ConfigSpace.ConfigurationSpace":
    """Return a space for optimizers that take ConfigSpace's, of the same configurations.

    It draws with a seed; without defaults, ConfigSpace chooses them.
    """
    cs, defaults = _library(), default or {}
    converted: ConfigSpace.ConfigurationSpace = cs.ConfigurationSpace(seed=seed)
    for dimension in space.dimensions:
        converted.add(_hyperparameter(cs, dimension, defaults.get(dimension.name)))
    for dimension in space.dimensions:
        if dimension.active is not None:
            name, values = dimension.active
            converted.add(cs.InCondition(converted[dimension.name], converted[name], list(values)))
    return converted


def from_configspace(space: "ConfigSpace.ConfigurationSpace") -> SearchSpace:
    """Return the search space of a ConfigSpace."""
    cs = _library()
    if not isinstance(space, cs.ConfigurationSpace):
        raise InvalidArgumentError(
            f"`space` must be a SearchSpace or a ConfigSpace.ConfigurationSpace, got {space!r:.80}"
        )
    if space.forbidden_clauses:
        raise InvalidArgumentError(
            f"`space` must have no forbidden clauses, got {space.forbidden_clauses!r:.80}; leave "
            "them out and treat such configurations as failures"
        )
    active: dict[str, tuple[str, tuple[Any, ...]]] = {}
    for condition in space.conditions:
        name, parent, values = _condition(cs, condition)
        if name in active:
            raise InvalidArgumentError(
                f"`space` must have at most one condition of a hyperparameter, {name!r} has more"
            )
        active[name] = parent, values
    # Parents come before their children there, too.
    return SearchSpace(
        tuple(
            _dimension(cs, hyperparameter, active.get(hyperparameter.name))
            for hyperparameter in space.values()
        )
    )


def _library() -> Any:
    with require_optional(
        "exchanging spaces with ConfigSpace", "ConfigSpace", "agents", "ConfigSpace"
    ):
        import ConfigSpace

        return ConfigSpace


def _hyperparameter(cs: Any, dimension: Dimension, default: Value | None) -> Any:
    name, meta = dimension.name, {field_name: getattr(dimension, field_name) for field_name in OWN}
    options: dict[str, Any] = {"meta": meta} | (
        {} if default is None else {"default_value": default}
    )
    if dimension.kind == "category":
        return cs.CategoricalHyperparameter(name, list(dimension.grid), **options)
    if dimension.values is not None:
        meta |= {"kind": dimension.kind, "log": dimension.log}
        return cs.OrdinalHyperparameter(name, list(dimension.values), **options)
    kind = {"float": cs.UniformFloatHyperparameter, "int": cs.UniformIntegerHyperparameter}
    low, high = dimension.low, dimension.high
    return kind[dimension.kind](name, lower=low, upper=high, log=dimension.log, **options)


def _condition(cs: Any, condition: Any) -> tuple[str, str, tuple[Any, ...]]:
    if isinstance(condition, cs.InCondition):
        values = condition.values
    elif isinstance(condition, cs.EqualsCondition):
        values = [condition.value]
    else:
        raise InvalidArgumentError(
            "`space` must have conditions of equality or membership only, got "
            f"{type(condition).__name__} of {condition!r:.80}"
        )
    plain = tuple(value.item() if hasattr(value, "item") else value for value in values)
    return condition.child.name, condition.parent.name, plain


def _dimension(
    cs: Any, hyperparameter: Any, active: tuple[str, tuple[Any, ...]] | None
) -> Dimension:
    meta = dict(hyperparameter.meta or {})
    fields = {name: meta[name] for name in OWN if meta.get(name) is not None}
    if isinstance(hyperparameter, cs.CategoricalHyperparameter):
        categories = [str(choice) for choice in hyperparameter.choices]
        scope = fields.get("scope", "client")
        return Dimension.of_categories(hyperparameter.name, categories, scope=scope, active=active)
    if isinstance(hyperparameter, cs.OrdinalHyperparameter):
        values = tuple(v.item() if hasattr(v, "item") else v for v in hyperparameter.sequence)
        has_integers = all(isinstance(value, int) for value in values)
        kind, log = meta.get("kind", "int" if has_integers else "float"), meta.get("log", False)
        low, high = values[0], values[-1]
        return Dimension(
            hyperparameter.name, low, high, kind, log=log, values=values, active=active, **fields
        )
    if isinstance(hyperparameter, cs.UniformFloatHyperparameter | cs.UniformIntegerHyperparameter):
        uniform: Kind = (
            "float" if isinstance(hyperparameter, cs.UniformFloatHyperparameter) else "int"
        )
        low, high = hyperparameter.lower, hyperparameter.upper
        return Dimension(
            hyperparameter.name, low, high, uniform, log=hyperparameter.log, active=active, **fields
        )
    raise InvalidArgumentError(
        "`space` must have uniform, ordinal and categorical hyperparameters only, got "
        f"{hyperparameter!r:.80}"
    )
