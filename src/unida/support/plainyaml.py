"""YAML as people mean it: no name twice, and `off` is a word."""

import re
from typing import Any

import yaml


class PlainYaml(yaml.SafeLoader):
    """Safe YAML with two differences.

    One name may not stand twice: the first of two rows would be lost in silence. Only true and false are truth values:
    on, off, yes and no are words, as in `spa_pretext: off`.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":  # <<: *other
                continue
            name = str(self.construct_object(key, deep=True))
            if name in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"{name!r} stands there twice, the second time in line {line}: rename one of them")
            seen.add(name)
        return super().construct_mapping(node, deep)


TRUTH = "tag:yaml.org,2002:bool"
PlainYaml.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != TRUTH]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PlainYaml.add_implicit_resolver(TRUTH, re.compile("true|True|TRUE|false|False|FALSE"), list("tTfF"))
