"""The methods, by the name that `--method` takes. To add one: write its file, name it here."""

from unida.methods.base import Method
from unida.methods.dcc import DCC
from unida.methods.ovanet import OVANet
from unida.methods.source_only import SourceOnly

METHODS: dict[str, type[Method]] = {method.name: method for method in (SourceOnly, OVANet, DCC)}

__all__ = ["METHODS", "Method"]
