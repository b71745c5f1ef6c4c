"""Manifests to models: what is taken, and the exact sentence for what is not."""

from pathlib import Path

import pytest

from towline.api.documents import MAX_FILE_BYTES, Documents, load
from towline.errors import Invalid

HEAD = "apiVersion: towline.dev/v1alpha1\nkind: AgentRun\nmetadata: {name: hello}\n"
"""Three lines, so that the spec begins in line 4."""


def loaded(folder: Path, text: str) -> Documents:
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    return load([folder / "run.yaml"])


def refusal(folder: Path, text: str) -> list[str]:
    """The sentences, without the folder in front of the file's name."""
    with pytest.raises(Invalid) as refused:
        loaded(folder, text)
    return [problem.replace(f"{folder}/", "") for problem in refused.value.problems]


def test_the_smallest_run_is_four_lines_and_has_every_default(tmp_path: Path) -> None:
    (run,) = loaded(tmp_path, HEAD + 'spec: {prompt: "Say hello."}').runs
    assert run.metadata.name == "hello"
    assert run.spec.prompt == "Say hello."
    assert run.spec.template_ref.name == "default"
    assert run.spec.sandbox.policy == "Lazy"
    assert run.spec.backoff_limit == 6
    assert run.spec.limits.max_turns is None


def test_the_documents_of_all_files_are_sorted_by_kind_and_empty_ones_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"---\n---\n{HEAD}spec: {{prompt: a}}\n---\n# nothing\n", encoding="utf-8")
    (tmp_path / "b.yaml").write_text(
        "apiVersion: towline.dev/v1alpha1\nkind: SandboxClass\nmetadata: {name: small}\n---\n"
        "apiVersion: towline.dev/v1alpha1\nkind: AgentTemplate\nmetadata: {name: coder}\nspec: {}\n",
        encoding="utf-8",
    )
    found = load([tmp_path / "a.yaml", tmp_path / "b.yaml"])
    assert [run.metadata.name for run in found.runs] == ["hello"]
    assert [template.metadata.name for template in found.templates] == ["coder"]
    assert [each.metadata.name for each in found.classes] == ["small"]
    assert found.providers == ()


@pytest.mark.parametrize(
    "spec",
    [
        "spec: {prompt: a, limits: , params: }",
        "spec: {prompt: a, toolPolicy: {rules: []}}\nstatus: {phase: Running, unknown: 1}",
        "spec: {prompt: 2026-11-29}",
        "spec: {prompt: 1:30}",
        "spec: {prompt: .inf}",
        "spec: {prompt: =}",
        "spec: {prompt: &p a, params: {x: *p}}",
    ],
)
def test_a_null_a_status_and_words_that_only_look_like_values_are_taken(tmp_path: Path, spec: str) -> None:
    assert len(loaded(tmp_path, HEAD + spec).runs) == 1


def test_metadata_of_an_exported_object_is_taken(tmp_path: Path) -> None:
    text = HEAD.replace("{name: hello}", "{name: hello, resourceVersion: '7', managedFields: [{manager: kubectl}]}")
    assert loaded(tmp_path, text + "spec: {prompt: a}").runs[0].metadata.name == "hello"


RUN = "document 1, AgentRun/hello"


@pytest.mark.parametrize(
    ("spec", "sentences"),
    [
        (
            "spec: {promt: hi, prompt: a}",
            [f'run.yaml:4: {RUN}: spec.promt is no field of spec; did you mean "prompt"?'],
        ),
        ("spec: {}", [f"run.yaml:4: {RUN}: spec has neither prompt nor promptFrom; expected exactly one"]),
        ("", [f"run.yaml:1: {RUN}: spec is missing"]),
        ("spec: ", [f"run.yaml:4: {RUN}: spec is missing"]),
        ("spec: [1]", [f"run.yaml:4: {RUN}: spec is a list; expected a mapping"]),
        ("specs: {}\nspec: {prompt: a}", [f'run.yaml:4: {RUN}: specs is no field of AgentRun; did you mean "spec"?']),
        (
            "spec: {prompt: a, promptFrom: {configMapKeyRef: {name: a, key: b}}}",
            [f"run.yaml:4: {RUN}: spec has both prompt and promptFrom; expected exactly one"],
        ),
        (
            f"spec:\n  prompt: {'x' * 32_769}",
            [f"run.yaml:5: {RUN}: spec.prompt is 32769 characters long; expected at most 32768"],
        ),
        ("spec: {prompt: ''}", [f"run.yaml:4: {RUN}: spec.prompt is empty; expected text"]),
        ("spec: {prompt: 3}", [f"run.yaml:4: {RUN}: spec.prompt is 3; expected a string (quote it)"]),
        ("spec: {prompt: yes}", [f"run.yaml:4: {RUN}: spec.prompt is true; expected a string (quote it)"]),
        (
            "spec:\n  prompt: a\n  limits:\n    maxTurns: 0\n    maxToolCalls: '3'\n  suspend: maybe",
            [
                f"run.yaml:7: {RUN}: spec.limits.maxTurns is 0; expected at least 1",
                f'run.yaml:8: {RUN}: spec.limits.maxToolCalls is "3"; expected a whole number',
                f'run.yaml:9: {RUN}: spec.suspend is "maybe"; expected true or false',
            ],
        ),
        ("spec: {prompt: a, priority: 1001}", [f"run.yaml:4: {RUN}: spec.priority is 1001; expected at most 1000"]),
        (
            "spec: {prompt: a, backoffLimit: 1.0}",
            [f"run.yaml:4: {RUN}: spec.backoffLimit is 1.0; expected a whole number"],
        ),
        (
            "spec: {prompt: a, sandbox: {policy: lasy}}",
            [f'run.yaml:4: {RUN}: spec.sandbox.policy is "lasy"; expected Lazy, Eager or Never; did you mean "Lazy"?'],
        ),
        (
            "spec: {prompt: a, templateRef: {name: My Template}}",
            [
                f'run.yaml:4: {RUN}: spec.templateRef.name is "My Template"; expected lower-case letters, digits, "-" '
                'and ".", with a letter or digit at both ends'
            ],
        ),
        (
            "spec: {prompt: a, idlePolicy: {suspendAfterSeconds: 9, finishAfterSeconds: 9}}",
            [
                f"run.yaml:4: {RUN}: spec.idlePolicy has suspendAfterSeconds 9 and finishAfterSeconds 9; "
                "expected the first to be less"
            ],
        ),
        (
            "spec: {prompt: a, params: {a-b: x}}",
            [
                f'run.yaml:4: {RUN}: spec.params holds the name "a-b"; expected a letter or "_", then letters, digits '
                'and "_"'
            ],
        ),
        (
            "spec:\n  prompt: a\n  workspace:\n    files:\n    - {path: /etc/passwd, content: a}\n"
            "    - {path: a/../../b, content: a}\n    - {content: 1}",
            [
                f'run.yaml:8: {RUN}: spec.workspace.files[0].path is "/etc/passwd"; expected a path inside the '
                "workspace, such as src/main.py",
                f'run.yaml:9: {RUN}: spec.workspace.files[1].path is "a/../../b"; expected a path inside the '
                "workspace, such as src/main.py",
                f"run.yaml:10: {RUN}: spec.workspace.files[2].path is missing",
                f"run.yaml:10: {RUN}: spec.workspace.files[2].content is 1; expected a string (quote it)",
            ],
        ),
        (
            "spec: {prompt: a, workspace: {files: [{path: a, content: x}, {path: a, content: y}]}}",
            [f'run.yaml:4: {RUN}: spec.workspace.files holds the path "a" twice; expected distinct paths'],
        ),
        (
            f"spec: {{prompt: a, workspace: {{files: [{{path: a, content: {'é' * 4097}}}]}}}}",
            [f"run.yaml:4: {RUN}: spec.workspace.files[0].content is 8194 bytes long; expected at most 8192"],
        ),
        (
            f"spec: {{prompt: a, workspace: {{files: [{'{path: a, content: b},' * 17}]}}}}",
            [f"run.yaml:4: {RUN}: spec.workspace.files has 17 entries; expected at most 16"],
        ),
    ],
)
def test_a_fault_in_a_run_is_named_with_place_value_and_expectation(
    tmp_path: Path, spec: str, sentences: list[str]
) -> None:
    assert refusal(tmp_path, HEAD + spec) == sentences


def test_the_names_that_fields_have_in_python_are_no_names_of_the_api(tmp_path: Path) -> None:
    nested, outer = refusal(tmp_path, HEAD + "spec: {prompt: a, limits: {max_turns: 3}, max_turns: 3}")
    assert nested.endswith('spec.limits.max_turns is no field of spec.limits; did you mean "maxTurns"?')
    assert outer.endswith(
        "spec.max_turns is no field of spec; known: prompt, promptFrom, templateRef, params, interactive, "
        "continueFrom, limits, activeDeadlineSeconds, backoffLimit, suspend, cancel, cancelReason, idlePolicy, "
        "workspace, sandbox, toolPolicy, approval, priority and ttlSecondsAfterFinished"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "kind: AgentRun",
            "run.yaml:1: document 1, AgentRun without a name: apiVersion is missing; expected towline.dev/v1alpha1",
        ),
        ("- 1", "run.yaml:1: document 1: is a list; expected a mapping with apiVersion and kind"),
        ("hello", 'run.yaml:1: document 1: is "hello"; expected a mapping with apiVersion and kind'),
        (
            "metadata: {}",
            "run.yaml:1: document 1: kind is missing; expected AgentRun, AgentTemplate, ModelProvider or SandboxClass",
        ),
        (
            "a: 1\nkind: Agentrun",
            'run.yaml:2: document 1: kind is "Agentrun"; expected AgentRun, AgentTemplate, ModelProvider or '
            'SandboxClass; did you mean "AgentRun"?',
        ),
        (
            HEAD.replace("v1alpha1", "v1") + "spec: {prompt: a}",
            'run.yaml:1: document 1, AgentRun/hello: apiVersion is "towline.dev/v1"; expected towline.dev/v1alpha1',
        ),
        (
            HEAD.replace("{name: hello}", "{}") + "spec: {prompt: a}",
            "run.yaml:3: document 1, AgentRun without a name: metadata.name is missing",
        ),
        (
            f"{HEAD}spec: {{prompt: a}}\n---\n{HEAD}spec: {{prompt: b}}",
            "run.yaml:6: document 2, AgentRun/hello: the same object is defined at run.yaml:1 (document 1)",
        ),
        ("a: [1, 2\nb: 3", "run.yaml:2:2: not YAML: expected ',' or ']', but got ':'"),
        ("a: *nope", "run.yaml:1:4: not YAML: found undefined alias 'nope'"),
        ("a: 1\na: 2", 'run.yaml:2:1: document 1: the key "a" comes twice, first in line 1'),
        ("on: 1", "run.yaml:1:1: document 1: the key on is not a string; quote it"),
        ("a: !!binary aGk=", "run.yaml:1:4: document 1: the tag !!binary is not allowed; expected plain values"),
        (
            "a: !!python/name:os.system",
            "run.yaml:1:4: document 1: the tag !!python/name:os.system is not allowed; expected plain values",
        ),
        ("a: &a [*a]", "run.yaml:1:4: document 1: an alias refers to what contains it"),
        ("a: \x01", "run.yaml:1:4: the character U+0001 is not allowed in YAML"),
        (f"a: {'9' * 5000}", "run.yaml: document 1 holds a number that cannot be read"),
        ("# nothing\n---\n", "run.yaml: holds no document"),
        ("", "run.yaml: holds no document"),
        ("[" * 5000, "run.yaml: document 1 is nested too deeply; expected at most 64"),
        (f"a: {'[' * 80}{']' * 80}", "run.yaml:1:1: document 1: is nested 81 deep; expected at most 64"),
    ],
)
def test_a_fault_in_the_file_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in refusal(tmp_path, text)


def test_a_few_lines_of_aliases_that_mean_millions_of_values_are_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert refusal(tmp_path, "\n".join(lines)) == [
        "run.yaml:1:1: document 1: holds more than 100000 values, aliases counted as what they repeat"
    ]


def test_the_other_kinds_name_their_faults_too(tmp_path: Path) -> None:
    text = """\
apiVersion: towline.dev/v1alpha1
kind: SandboxClass
metadata: {name: small}
spec:
  resources: {cpu: 0.5, memory: 12Mo, disk: 0}
  local: {rootfs: somewhere}
---
apiVersion: towline.dev/v1alpha1
kind: SandboxClass
metadata: {name: other}
spec: {local: {}}
---
apiVersion: towline.dev/v1alpha1
kind: AgentTemplate
metadata: {name: coder}
spec: {tools: [exec, exec], harness: {kind: codex}}
---
apiVersion: towline.dev/v1alpha1
kind: ModelProvider
metadata: {name: one}
spec: {api: Scripted}
---
apiVersion: towline.dev/v1alpha1
kind: ModelProvider
metadata: {name: two}
spec: {api: OpenAIChatCompletions, scripted: {steps: []}}
"""
    small, other = "document 1, SandboxClass/small", "document 2, SandboxClass/other"
    assert refusal(tmp_path, text) == [
        f'run.yaml:5: {small}: spec.resources.cpu is 0.5; expected a whole number, or the fraction as text: "0.5"',
        f'run.yaml:5: {small}: spec.resources.memory is "12Mo"; expected a size such as 512Mi, 2Gi or 1048576',
        f'run.yaml:5: {small}: spec.resources.disk is "0"; expected more than nothing',
        f'run.yaml:6: {small}: spec.local.rootfs is "somewhere"; expected an absolute path',
        f"run.yaml:11: {other}: spec has local and provider pod; expected provider local",
        'run.yaml:16: document 3, AgentTemplate/coder: spec.tools holds "exec" twice; expected distinct names',
        'run.yaml:16: document 3, AgentTemplate/coder: spec.harness.kind is "codex"; expected native',
        "run.yaml:21: document 4, ModelProvider/one: spec has api Scripted and no scripted; "
        "expected scripted.steps with the answers",
        "run.yaml:26: document 5, ModelProvider/two: spec.scripted.steps has 0 entries; expected at least 1",
    ]


def test_what_may_be_a_secret_is_described_and_never_repeated(tmp_path: Path) -> None:
    text = """\
apiVersion: towline.dev/v1alpha1
kind: ModelProvider
metadata: {name: one}
spec:
  api: AnthropicMessages
  apiKey: sk-leak
  secretRef: sk-leak
  baseURL: ftp://user:sk-leak@host
---
apiVersion: towline.dev/v1alpha1
kind: ModelProvider
metadata: {name: two}
spec: {api: AnthropicMessages, secretRef: {name: sk-Leak}}
"""
    problems = refusal(tmp_path, text)
    assert len(problems) == 4
    assert not any("leak" in problem.lower() for problem in problems)
    assert "spec.secretRef is a string of 7 characters; expected a mapping" in problems[1]


def test_files_that_cannot_be_read_as_text_are_named_together(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(Invalid) as refused:
        load([tmp_path / "none.yaml", tmp_path, tmp_path / "latin.yaml", tmp_path / "large.yaml"])
    assert list(refused.value.problems) == [
        f"{tmp_path}/none.yaml: cannot be read: No such file or directory",
        f"{tmp_path}: cannot be read: Is a directory",
        f"{tmp_path}/latin.yaml: is not UTF-8 text: byte 3 is 0xff",
        f"{tmp_path}/large.yaml: is larger than 4194304 bytes",
    ]


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    assert loaded(tmp_path, f"\ufeff{HEAD}spec: {{prompt: a}}").runs
