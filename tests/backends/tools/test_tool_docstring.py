"""Google style docstrings, and what people write instead."""

from __future__ import annotations

import pytest

from repertory.backends.tools.function_tool import read_docstring


def test_the_args_section_becomes_parameters_and_the_rest_is_the_description():
    text = """Find things.

    More of it.

    Args:
        query (str): What to find,
            in plain words.
        limit: Most results.

            A second paragraph.
        *rest: Others.

    Returns:
        Lines.
    """
    docstring = read_docstring(text)
    assert docstring.description == "Find things.\n\nMore of it.\n\nReturns:\n    Lines."
    assert docstring.parameters == {
        "query": "What to find,\nin plain words.",
        "limit": "Most results.\nA second paragraph.",
        "rest": "Others.",
    }


@pytest.mark.parametrize("header", ["Args:", "Arguments:", "Parameters:", "args:"])
def test_each_spelling_of_the_header_is_known(header: str):
    assert read_docstring(f"Do.\n\n{header}\n    x: The thing.").parameters == {"x": "The thing."}


@pytest.mark.parametrize("text", [None, "", "   \n  "])
def test_nothing_gives_nothing(text: str | None):
    docstring = read_docstring(text)
    assert (docstring.description, docstring.parameters) == ("", {})


def test_a_type_with_brackets_and_a_colon_in_the_text_are_understood():
    docstring = read_docstring("Do.\n\nArgs:\n    x (dict[str, tuple[int, ...]], optional): Such as: this.")
    assert docstring.parameters == {"x": "Such as: this."}


def test_text_in_the_section_that_names_no_parameter_does_no_harm():
    docstring = read_docstring("Do.\n\nArgs:\n    None\n    see http://example.org/x for more\n")
    assert docstring.parameters == {}


def test_args_in_the_middle_of_a_sentence_are_no_section():
    docstring = read_docstring("Takes args: any.\n\nNo more.")
    assert docstring.description == "Takes args: any.\n\nNo more."
