//! `paceline launch` with the unmodified coding agents, which `scripts/test-more.sh` installs: a
//! request and a second turn each, and the user's own configuration as it was.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use paceline_tests::python::{Clients, Packages};
use paceline_tests::skip::smollm2;
use paceline_tests::{Stack, model};

/// Leaves out what an agent says beside a begun sentence, because a small model has no room for it, and
/// begins the answer with that sentence: what the model adds is nearly certain at any temperature. Tools
/// and calls are cut short.
const TEMPLATE: &str = "{%- set begun = namespace(text='') %}\
{%- if tools %}{{- '<|im_start|>system\n' }}{%- for tool in tools %}{{- (tool | tojson)[:200] }}{%- endfor %}\
{{- '<|im_end|>\n' }}{%- endif %}{%- for m in messages %}\
{%- if m.role == 'user' and m.content is string and 'COMPLETE: ' in m.content %}\
{%- set begun.text = m.content.split('COMPLETE: ')[-1].split(' is')[0] + ' is' %}\
{{- '<|im_start|>user\nComplete: ' + begun.text + '<|im_end|>\n' }}\
{%- elif m.role == 'user' and m.content is string %}{{- m.content[:9] }}{%- endif %}\
{%- for c in m.tool_calls or [] %}{{- c.function.name + (c.function.arguments | tojson) }}{%- endfor %}\
{%- if m.role == 'tool' or m.role == 'assistant' and m.content %}\
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}\
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' + begun.text }}{%- endif %}";
/// Begun sentences of two turns, and a word of each answer.
const SENTENCES: [[&str; 2]; 2] = [
    ["COMPLETE: The capital of France is", "Paris"],
    ["COMPLETE: The capital of Italy is", "Rome"],
];

/// An agent in a home directory of its own.
struct Launched {
    stack: Stack,
    home: tempfile::TempDir,
    programs: PathBuf,
}

impl Launched {
    /// `own` are the user's configuration files. `None` if this machine cannot have the agent.
    fn new(test: &str, packages: Packages, own: &[(&str, &str)]) -> Option<Self> {
        let weights = smollm2(test)?;
        let programs = match packages {
            Packages::Agents => Clients::agents(test)?,
            other => Clients::with(other, test)?.programs(),
        };
        let home = tempfile::tempdir().expect("a directory");
        for (name, content) in own {
            let path = home.path().join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, content).expect("written");
        }
        fs::create_dir(home.path().join("project")).expect("made");
        let model = templated(&weights, home.path());
        let stack = Stack::ready(&format!("target.model = {model:?}\ndrafter.model = \"\"\n"));
        Some(Self { stack, home, programs })
    }

    /// Launches the agent with these words, in a shell.
    fn run(&self, words: &str) -> Output {
        let mut command = self.stack.shell(&format!("paceline launch {words}"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let own = [paceline_tests::programs(), self.programs.clone()];
        let places = own.into_iter().chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(places).expect("no colon in a directory"));
        let keeps = ["PATH", "HOME", "PACELINE_CONFIG"];
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| keeps.iter().all(|kept| name != kept))
        {
            command.env_remove(name);
        }
        command.env("HOME", self.home.path()).current_dir(self.home.path().join("project"));
        command.stdin(std::process::Stdio::null());
        command.output().expect("sh is there")
    }

    /// Runs a turn for each sentence. `words` has `{}` in its place.
    fn answers(&self, words: [&str; 2]) {
        let before = files(self.home.path());
        for ([sentence, answer], words) in SENTENCES.into_iter().zip(words) {
            let output = self.run(&words.replace("{}", &format!("'{sentence}'")));
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains(answer), "{words}: {output:?}");
        }
        let after = files(self.home.path());
        for (path, content) in before {
            let now = after.get(&path).map(|now| String::from_utf8_lossy(now));
            assert_eq!(now, Some(String::from_utf8_lossy(&content)), "{}", path.display());
        }
    }
}

/// `SmolLM2` with the template for agents, in a directory of `parent`.
fn templated(weights: &Path, parent: &Path) -> PathBuf {
    let dir = parent.join("smollm2");
    fs::create_dir(&dir).expect("made");
    for entry in fs::read_dir(weights).expect("a directory") {
        let path = entry.expect("an entry").path();
        let to = dir.join(path.file_name().expect("it has one"));
        fs::copy(&path, &to).expect("copied");
    }
    model::set_template(&dir, TEMPLATE);
    // Agents measure their own prompt by the context, before the template leaves it out.
    replace(
        &dir.join("config.json"),
        "\"max_position_embeddings\": 8192",
        "\"max_position_embeddings\": 65536",
    );
    // A full stop (id 30) ends an answer: at a high temperature the model would go on.
    replace(&dir.join("generation_config.json"), "\"eos_token_id\": [", "\"eos_token_id\": [30,");
    dir
}

/// Replaces a text of a file, which has it.
fn replace(path: &Path, old: &str, new: &str) {
    let text = fs::read_to_string(path).expect("read");
    assert!(text.contains(old), "{}: expected {old}", path.display());
    fs::write(path, text.replace(old, new)).expect("written");
}

/// All files below a home directory but those of the model.
fn files(home: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![home.to_owned()]);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            let kind = path.symlink_metadata().expect("it is there");
            if kind.is_dir() && !path.ends_with("smollm2") {
                open.push(path);
            } else if kind.is_file() {
                found.insert(path.clone(), fs::read(path).expect("read"));
            }
        }
    }
    found
}

#[test]
#[ignore = "more: packages of a registry"]
fn claude_code_answers_two_turns() {
    let own = [
        (".claude.json", "{\"numStartups\": 3}\n"),
        (".claude/settings.json", "{\"model\": \"opus\"}\n"),
    ];
    let test = "claude_code_answers_two_turns";
    let Some(launched) = Launched::new(test, Packages::Agents, &own) else { return };
    launched.answers(["claude -p {}", "claude --continue -p {}"]);
}

#[test]
#[ignore = "more: packages of a registry"]
fn codex_cli_answers_two_turns() {
    let own = [(".codex/config.toml", "model = \"gpt-5\"\n")];
    let test = "codex_cli_answers_two_turns";
    let Some(launched) = Launched::new(test, Packages::Agents, &own) else { return };
    launched.answers([
        "codex exec --skip-git-repo-check {}",
        "codex exec --skip-git-repo-check resume --last {}",
    ]);
}

#[test]
#[ignore = "more: packages of a registry"]
fn opencode_answers_two_turns() {
    let own = [(
        ".config/opencode/opencode.json",
        "{\"$schema\": \"https://opencode.ai/config.json\", \"model\": \"openai/gpt-5\"}\n",
    )];
    let test = "opencode_answers_two_turns";
    let Some(launched) = Launched::new(test, Packages::Agents, &own) else { return };
    launched.answers(["opencode run {}", "opencode run --continue {}"]);
}

#[test]
#[ignore = "more: packages of a registry"]
fn qwen_code_answers_two_turns() {
    let own = [(".qwen/settings.json", "{\"model\": {\"name\": \"qwen3-coder-plus\"}}\n")];
    let test = "qwen_code_answers_two_turns";
    let Some(launched) = Launched::new(test, Packages::Agents, &own) else { return };
    launched.answers(["qwen -p {}", "qwen --continue -p {}"]);
}

#[test]
#[ignore = "more: packages of a registry"]
fn aider_answers_two_turns() {
    let own = [(".aider.conf.yml", "model: gpt-5\n")];
    let test = "aider_answers_two_turns";
    let Some(launched) = Launched::new(test, Packages::Aider, &own) else { return };
    let words = "aider --no-git --yes-always --no-pretty --no-show-release-notes --message {}";
    launched.answers([words, &format!("{words} --restore-chat-history")]);
}

#[test]
fn an_agent_that_is_not_installed_is_named_with_the_command_that_installs_it() {
    let stack = Stack::ready("");
    let mut command = stack.shell("paceline launch --anyway codex");
    command.env("PATH", format!("{}:/usr/bin:/bin", paceline_tests::programs().display()));
    let home = tempfile::tempdir().expect("a directory");
    let output = command.env("HOME", home.path()).output().expect("sh is there");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && why.contains("npm install -g @openai/codex"), "{why}");
    let refused = stack.shell("paceline launch qwen").output().expect("sh is there");
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(why.contains("chat template knows tools") && why.contains("--anyway"), "{why}");
    stack.stop();
}
