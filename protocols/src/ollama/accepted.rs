//! Fields of Ollama's API that are accepted and not read, each with the client that sends it, and
//! the values of read fields that change nothing.

use crate::accepted::{Accepted, Values, accepted};

/// Of a request of `/api/chat`.
pub const CHAT: &[Accepted] = &[
    accepted("_debug_render_only", Values::Boolean(false), "ollama's own tests"),
    accepted("shift", Values::Any, "ollama; an answer ends where the context is full"),
    accepted("truncate", Values::Any, "ollama; a prompt that is too long is refused"),
];

/// Of a request of `/api/generate`.
pub const GENERATE: &[Accepted] = &[
    accepted("context", Values::Empty, "ollama (Python); earlier turns go to /api/chat"),
    accepted("shift", Values::Any, "ollama; an answer ends where the context is full"),
    accepted("template", Values::Empty, "ollama (Python); the model's own template is used"),
    accepted("truncate", Values::Any, "ollama; a prompt that is too long is refused"),
];

/// Of a request of `/api/show`.
pub const SHOW: &[Accepted] = &[
    accepted("options", Values::Any, "Ollama's own program"),
    accepted("system", Values::Any, "Ollama's own program"),
    accepted("template", Values::Any, "Ollama's own program"),
    accepted("verbose", Values::Any, "Ollama's own program; the vocabulary is not listed"),
];

/// Of a message.
pub const MESSAGE: &[Accepted] =
    &[accepted("name", Values::Any, "litellm, beside the id of the tool call")];

/// Of a tool call.
pub const TOOL_CALL: &[Accepted] =
    &[accepted("type", Values::Words(&["function"]), "ollama-ai-provider")];

/// Of a function that was called.
pub const CALLED: &[Accepted] =
    &[accepted("index", Values::Any, "ollama, in messages that it resends")];

/// Of a function.
pub const FUNCTION: &[Accepted] = &[accepted(
    "strict",
    Values::Any,
    "langchain-ollama; calls follow the schema as far as they can",
)];

/// Of the options: memory and threads, which are the service's own, and ways to choose tokens with
/// the values that switch them off.
pub const OPTIONS: &[Accepted] = &[
    accepted("embedding_only", Values::Boolean(false), "ollama (Python)"),
    accepted("f16_kv", Values::Any, "ollama (Python)"),
    accepted("logits_all", Values::Any, "ollama (Python)"),
    accepted("low_vram", Values::Any, "ollama (Python)"),
    accepted("main_gpu", Values::Any, "ollama (Python)"),
    accepted("mirostat", Values::Numbers(&[0.0]), "ollama (Python), langchain-ollama"),
    accepted("mirostat_eta", Values::Any, "langchain-ollama; without mirostat it changes nothing"),
    accepted("mirostat_tau", Values::Any, "langchain-ollama; without mirostat it changes nothing"),
    accepted("num_batch", Values::Any, "ollama (Python)"),
    accepted("num_ctx", Values::Any, "llama-index, Home Assistant; a wish for memory"),
    accepted("num_gpu", Values::Any, "langchain-ollama"),
    accepted("num_keep", Values::Any, "ollama (Python); nothing of a prompt is left out"),
    accepted("num_thread", Values::Any, "langchain-ollama"),
    accepted("numa", Values::Any, "ollama (Python)"),
    accepted("penalize_newline", Values::Any, "ollama (Python); Ollama ignores it, too"),
    accepted("repeat_last_n", Values::Any, "langchain-ollama; a penalty counts the whole text"),
    accepted("tfs_z", Values::Numbers(&[1.0]), "langchain-ollama"),
    accepted("typical_p", Values::Numbers(&[1.0]), "ollama (Python)"),
    accepted("use_mlock", Values::Any, "ollama (Python)"),
    accepted("use_mmap", Values::Any, "ollama (Python)"),
    accepted("vocab_only", Values::Boolean(false), "ollama (Python)"),
];
