//! The agents, and how each of them is configured for one start. Sources: the documentation of each
//! agent, which `docs/clients.md` links, and the agents themselves, driven by `make test-more`.

use std::path::Path;

use paceline_client::Failure;
use serde_json::json;

use super::plan::{LaunchFile, LaunchPlan};
use super::served::ServedModel;
use crate::args::Agent;

/// Tokens of context that an agent with tools needs: its own prompt has 10,000 to 30,000.
const AGENT_CONTEXT: u32 = 32_768;
/// Tokens of context that aider needs for its prompt, a file and an answer.
const AIDER_CONTEXT: u32 = 8_192;

impl Agent {
    /// Its program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Opencode => "opencode",
            Self::Qwen => "qwen",
            Self::Aider => "aider",
        }
    }

    /// The command that installs it.
    pub fn installation(self) -> &'static str {
        match self {
            Self::Claude => "npm install -g @anthropic-ai/claude-code",
            Self::Codex => "npm install -g @openai/codex",
            Self::Opencode => "npm install -g opencode-ai",
            Self::Qwen => "npm install -g @qwen-code/qwen-code",
            Self::Aider => "pipx install aider-chat",
        }
    }

    /// Whether it works by tool calls.
    fn needs_tools(self) -> bool {
        self != Self::Aider
    }

    /// Least tokens of context that it can work with.
    fn least_context(self) -> u32 {
        if self.needs_tools() { AGENT_CONTEXT } else { AIDER_CONTEXT }
    }

    /// Whether it can work with this model.
    ///
    /// # Errors
    /// Which capability is missing.
    pub fn check(self, model: &ServedModel) -> Result<(), Failure> {
        let (program, least) = (self.program(), self.least_context());
        let lack = if !model.chat {
            "a model with a chat template, found one without".to_owned()
        } else if self.needs_tools() && !model.tools {
            "a model whose chat template knows tools, found one without".to_owned()
        } else if model.context_length < least {
            let found = model.context_length;
            format!("a context of at least {least} tokens for its prompt, found {found}")
        } else {
            return Ok(());
        };
        Err(Failure::refused_here(format!(
            "{program} with {}: expected {lack}; serve another model, or start it all the same \
             with --anyway",
            model.name
        )))
    }

    /// How it is started with this model. `dir` is the directory of its files.
    pub(super) fn plan(self, model: &ServedModel, dir: &Path) -> LaunchPlan {
        match self {
            Self::Claude => claude(model, dir),
            Self::Codex => codex(model, dir),
            Self::Opencode => opencode(model),
            Self::Qwen => qwen(model, dir),
            Self::Aider => aider(model, dir),
        }
    }
}

/// Claude Code writes into its configuration at each start, so it gets a directory of its own.
fn claude(model: &ServedModel, dir: &Path) -> LaunchPlan {
    let name = || model.name.clone();
    LaunchPlan {
        set: vec![
            ("ANTHROPIC_BASE_URL", model.url("")),
            ("ANTHROPIC_AUTH_TOKEN", model.key.clone()),
            ("ANTHROPIC_MODEL", name()),
            ("ANTHROPIC_DEFAULT_OPUS_MODEL", name()),
            ("ANTHROPIC_DEFAULT_SONNET_MODEL", name()),
            ("ANTHROPIC_DEFAULT_HAIKU_MODEL", name()),
            ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", model.context_length.to_string()),
            ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", model.answer_length().to_string()),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ("CLAUDE_CONFIG_DIR", dir.display().to_string()),
        ],
        // Another key would be sent beside the token, and the other two choose another service.
        removed: &["ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"],
        // Without it the first start asks for an account.
        files: vec![LaunchFile {
            name: ".claude.json",
            content: json!({ "hasCompletedOnboarding": true }).to_string(),
            is_agents_own: true,
        }],
        ..Default::default()
    }
}

/// Codex CLI writes into `config.toml` of its directory, so it gets a directory of its own, and our
/// settings are on its command line.
fn codex(model: &ServedModel, dir: &Path) -> LaunchPlan {
    let catalogue = "paceline.json";
    let name = toml(&model.name);
    let settings = [
        format!("model={name}"),
        "model_provider=\"paceline\"".to_owned(),
        format!("model_context_window={}", model.context_length),
        format!("model_catalog_json={}", toml(&dir.join(catalogue).display().to_string())),
        "model_providers.paceline.name=\"Paceline\"".to_owned(),
        format!("model_providers.paceline.base_url={}", toml(&model.url("/v1"))),
        "model_providers.paceline.wire_api=\"responses\"".to_owned(),
        "model_providers.paceline.env_key=\"PACELINE_API_KEY\"".to_owned(),
    ];
    LaunchPlan {
        words: settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]).collect(),
        set: vec![
            ("CODEX_HOME", dir.display().to_string()),
            ("PACELINE_API_KEY", model.key.clone()),
        ],
        files: vec![LaunchFile {
            name: catalogue,
            content: model.catalogue.clone(),
            is_agents_own: false,
        }],
        ..Default::default()
    }
}

/// opencode lays this configuration over the user's.
fn opencode(model: &ServedModel) -> LaunchPlan {
    let limit = json!({ "context": model.context_length, "output": model.answer_length() });
    let config = json!({
        "$schema": "https://opencode.ai/config.json",
        "provider": { "paceline": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Paceline",
            "options": { "baseURL": model.url("/v1"), "apiKey": "{env:PACELINE_API_KEY}" },
            "models": { &model.name: { "name": model.name, "limit": limit } },
        } },
        "model": format!("paceline/{}", model.name),
        "small_model": format!("paceline/{}", model.name),
    });
    LaunchPlan {
        set: vec![
            ("OPENCODE_CONFIG_CONTENT", config.to_string()),
            ("PACELINE_API_KEY", model.key.clone()),
        ],
        ..Default::default()
    }
}

/// Qwen Code rewrites settings of an older form, so it gets a directory of its own.
fn qwen(model: &ServedModel, dir: &Path) -> LaunchPlan {
    LaunchPlan {
        words: vec!["--auth-type".to_owned(), "openai".to_owned()],
        set: vec![
            ("QWEN_HOME", dir.display().to_string()),
            ("OPENAI_BASE_URL", model.url("/v1")),
            ("OPENAI_API_KEY", model.key.clone()),
            ("OPENAI_MODEL", model.name.clone()),
        ],
        // Without the file each start has a warning.
        files: vec![LaunchFile {
            name: "settings.json",
            content: "{}\n".to_owned(),
            is_agents_own: true,
        }],
        ..Default::default()
    }
}

/// aider asks nobody for the length of a model's context, so a file has it.
fn aider(model: &ServedModel, dir: &Path) -> LaunchPlan {
    let (name, metadata) = (format!("openai/{}", model.name), "metadata.json");
    let known = json!({ &name: {
        "max_input_tokens": model.context_length,
        "max_output_tokens": model.answer_length(),
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 0.0,
        "output_cost_per_token": 0.0,
    } });
    let file = dir.join(metadata).display().to_string();
    let words = ["--model", &name, "--model-metadata-file", &file, "--no-check-update"];
    LaunchPlan {
        words: words.map(str::to_owned).to_vec(),
        set: vec![("OPENAI_API_BASE", model.url("/v1")), ("OPENAI_API_KEY", model.key.clone())],
        files: vec![LaunchFile {
            name: metadata,
            content: known.to_string(),
            is_agents_own: false,
        }],
        ..Default::default()
    }
}

/// A text as TOML writes it. JSON's form of a text is one of TOML's.
fn toml(text: &str) -> String {
    json!(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_refused_a_model_that_it_cannot_work_with() {
        let model = ServedModel {
            name: "m".into(),
            context_length: 32_768,
            chat: true,
            tools: true,
            ..Default::default()
        };
        assert_eq!(Agent::Claude.check(&model), Ok(()));
        for (lacking, agent, why) in [
            (ServedModel { chat: false, ..model.clone() }, Agent::Aider, "chat template"),
            (ServedModel { tools: false, ..model.clone() }, Agent::Codex, "tools"),
            (ServedModel { context_length: 8_192, ..model.clone() }, Agent::Qwen, "found 8192"),
        ] {
            let failure = agent.check(&lacking).expect_err("it does not fit");
            assert!(failure.message.contains(why), "{failure}");
        }
        let small = ServedModel { tools: false, context_length: 8_192, ..model };
        assert_eq!(Agent::Aider.check(&small), Ok(()), "it calls no tools and has a short prompt");
    }
}
