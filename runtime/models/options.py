"""What may be chosen when a model is registered: how it is typed again, and what tells two choices apart in a name."""

from typing import Final, NamedTuple

from ...cybergraph.nodes import Model


class Option(NamedTuple):
    """One choice, which is a field of the model's identity."""

    field: str
    flag: str
    default: str

    def word(self, model: Model) -> str:
        """Give the choice as it is typed."""
        return str(getattr(model, self.field)).partition("/")[0]


OPTIONS: Final = (
    Option("block_size", "--block-size", "16"),
    Option("kv_dtype", "--dtype", "f32"),
    Option("leaf_hash", "--leaf-hash", "blake3"),
    Option("kv_quant_scheme", "--kv-quant", "none"),
)


def flags(model: Model) -> str:
    """Give the options of `model add` that make this identity, each after a space; nothing for the plain model."""
    words = ((option, option.word(model)) for option in OPTIONS)
    return "".join(f" {option.flag} {word}" for option, word in words if word != option.default)


def suffix(model: Model, beside: Model) -> str:
    """Give what a name needs to tell a model from the same one with other choices, such as `-64-int8`.

    Keys and values that are stored as they are add `-plain`.
    """
    words = (option.word(model) for option in OPTIONS if option.word(model) != option.word(beside))
    return "".join("-plain" if word == "none" else f"-{word}" for word in words)
