"""Stop lists for usage detection: ids, tools and commands so common that they are no evidence of a unit."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NO_RULES = _words(
    "AES AMD ARM BASE CSS CVE EC ECMA ED ES FLOAT GPT H HTTP INT IP IPV ISO MD MP OAUTH PEP PY Q RFC RSA SHA SSL TLS "
    "UINT UTC UTF V WCAG WEB WIN X"
)
"""Letters before a number in the names of standards, versions, headings and quarters: not the id of a rule."""

TOOLS = _words(
    "apply_patch edit_file execute_command file_search glob_files grep_search list_dir list_directory list_files "
    "multi_edit MultiEdit NotebookEdit open_file read_file run_command run_in_terminal run_shell_command search_files "
    "str_replace_based_edit_tool str_replace_editor TodoRead TodoWrite todo_write WebFetch WebSearch web_fetch "
    "web_search write_file"
)

PROGRAMS = _words(
    "cat cd chmod cp curl echo export find grep head ls mkdir mv pwd rg rm sed source tail touch wc which"
)

COMMANDS = frozenset(
    (
        *(
            ("git", word)
            for word in _words("add branch checkout clone commit diff fetch log pull push show stash status")
        ),
        *(("npm", word) for word in _words("ci install test")),
        *(("python", "-m"), ("python3", "-m"), ("pip", "install"), ("docker", "ps"), ("go", "build")),
    )
)
"""Matched by their first two words; further words must be one-letter flags or in `FURTHER_WORDS`."""

FURTHER_WORDS = _words("-am . -- --all --oneline --upgrade main master origin")
