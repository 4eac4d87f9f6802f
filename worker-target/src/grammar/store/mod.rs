//! Compiled grammars by the digest of their texts. Grammars are compiled one at a time on a thread of
//! their own, off the engine's; the least recently used ones are dropped.
//!
//! A request's grammar is compiled before the supervisor gives the request a running place
//! ([`Grammars::prepare`]), so that no request that waits for the compiler takes a place from one
//! that could run. What was prepared stays until its request runs, also if it is the least recently
//! used one meanwhile. A grammar that is not there when its request runs is compiled then: after a
//! restart of the target alone.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use llguidance::{ParserFactory, TokenParser};
use lru::LruCache;
use paceline_process::worker::Progress;
use paceline_proto::status::{Reason, ReasonStatus as _};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tonic::Status;

use super::compile::{self, PartError};
use super::line::{Line, LineFull};
use super::memory::{GrammarMemory, HeldBytes};
use super::vocabulary::{Vocabulary, VocabularyError};
use super::{GrammarSource, GrammarState, PartContent};

/// Compiled grammars that are kept.
const MAX_GRAMMARS: NonZeroUsize = NonZeroUsize::new(256).expect("not 0");
/// Bytes of compiled grammars that are kept.
const MAX_BYTES: u64 = 64 << 20;
/// Bytes of grammars that are kept for requests that do not run yet.
const MAX_PREPARED_BYTES: u64 = 128 << 20;
/// How long a request waits for its grammar's compilation, once that has begun.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Stack of the compiler's thread. The compiler calls itself for each level of a schema; a level
/// takes up to 40 KiB in a build without optimization.
pub(super) const STACK_BYTES: usize = 32 << 20;

/// A grammar's texts as one number.
type Key = [u8; 32];

/// A vocabulary and the compiler for it.
struct Compiler {
    vocabulary: Vocabulary,
    factory: ParserFactory,
}

/// A compiled grammar, at the beginning of an answer. It is never advanced: each sequence gets a
/// copy with caches of its own, so that no sequence depends on another one (I1, I9).
struct Compiled {
    parser: Mutex<TokenParser>,
    bytes: u64,
}

/// Compiled grammars of one model.
#[derive(Clone)]
pub(crate) struct Grammars {
    shared: Arc<Shared>,
}

struct Shared {
    /// The model's `tokenizer.json`.
    tokenizer: PathBuf,
    /// Rows of the model's output head.
    vocab: usize,
    compiler: OnceLock<Compiler>,
    /// Held while the compiler is made, which takes up to a second.
    making: Mutex<()>,
    kept: Mutex<KeptGrammars>,
    /// One compilation at a time.
    line: Arc<Line>,
    memory: Arc<GrammarMemory>,
}

struct KeptGrammars {
    grammars: LruCache<Key, Arc<Compiled>>,
    bytes: u64,
    /// Grammars of requests that do not run yet.
    prepared: HashMap<Key, Weak<Compiled>>,
}

/// A grammar that is kept until its request runs.
pub(crate) struct WaitingGrammar {
    _compiled: Arc<Compiled>,
    _held: HeldBytes,
}

impl Grammars {
    /// Grammars for the model whose `tokenizer.json` this is, with `vocab` ids.
    pub(crate) fn new(tokenizer: PathBuf, vocab: usize, progress: Arc<Progress>) -> Self {
        let grammars = LruCache::new(MAX_GRAMMARS);
        let kept = KeptGrammars { grammars, bytes: 0, prepared: HashMap::new() };
        Self {
            shared: Arc::new(Shared {
                tokenizer,
                vocab,
                compiler: OnceLock::new(),
                making: Mutex::default(),
                kept: Mutex::new(kept),
                line: Arc::default(),
                memory: Arc::new(GrammarMemory::new(progress)),
            }),
        }
    }

    /// Reads the vocabulary on a thread of its own, so that the first request with a grammar does not
    /// wait for it. The compiler for it takes tens of MiB.
    ///
    /// # Errors
    /// The system has no thread.
    pub(crate) fn read_vocabulary(&self) -> std::io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        // Without a vocabulary the first request with a grammar gets the reason.
        let work = move || drop(shared.compiler());
        std::thread::Builder::new().name("vocabulary".into()).spawn(work)
    }

    /// Compiles a grammar for a request of this API key that does not run yet.
    ///
    /// # Errors
    /// As [`Grammars::state`]; grammars of waiting requests hold as much memory as they may.
    pub(crate) async fn prepare(
        &self,
        source: GrammarSource,
        key_id: u64,
    ) -> Result<WaitingGrammar, Status> {
        let key = digest(&source);
        let compiled = self.compiled(key, source, key_id).await?;
        let held = self.shared.memory.hold(compiled.bytes);
        let mut kept = self.shared.kept.lock().expect("no panic while it is held");
        if !kept.prepare(key, &compiled) {
            return Err(Reason::QueueFull
                .status("grammars of waiting requests hold as many bytes as they may"));
        }
        Ok(WaitingGrammar { _compiled: compiled, _held: held })
    }

    /// The state of a new sequence in this grammar.
    ///
    /// # Errors
    /// The grammar cannot be enforced or needs too much; too many requests wait for the compiler;
    /// the model's tokenizer is of a kind that has no bytes.
    pub(crate) async fn state(&self, source: GrammarSource) -> Result<GrammarState, Status> {
        let end_ids = source.end_ids.clone();
        let compiled = self.compiled(digest(&source), source, 0).await?;
        self.shared.open(&compiled, end_ids)
    }

    async fn compiled(
        &self,
        key: Key,
        source: GrammarSource,
        key_id: u64,
    ) -> Result<Arc<Compiled>, Status> {
        if let Some(compiled) = self.shared.kept(&key) {
            return Ok(compiled);
        }
        let seat = self.shared.line.seat(key_id).await.map_err(|LineFull| {
            Reason::QueueFull.status("more requests wait for the compiler of grammars than may")
        })?;
        // Compiled for another request meanwhile.
        if let Some(compiled) = self.shared.kept(&key) {
            return Ok(compiled);
        }
        let (done, outcome) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let work = move || {
            // Free when the work is done, not when the request has gone.
            let _seat = seat;
            // The request may have gone.
            let _ = done.send(shared.compile(key, &source));
        };
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        thread.spawn(work).map_err(|error| bug(&format!("no thread for a grammar: {error}")))?;
        match tokio::time::timeout(TIMEOUT + self.shared.loading(), outcome).await {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(_)) => Err(bug("a panic while a grammar was compiled")),
            Err(_) => {
                let message = format!(
                    "grammar: expected one that is compiled within {} s, found another; make it \
                     smaller",
                    TIMEOUT.as_secs()
                );
                Err(Reason::InvalidArgument.field("grammar", message))
            }
        }
    }
}

impl Shared {
    /// More time for the first grammar, which reads the vocabulary.
    fn loading(&self) -> Duration {
        let seconds = if self.compiler.get().is_some() { 0 } else { 30 };
        Duration::from_secs(seconds)
    }

    fn kept(&self, key: &Key) -> Option<Arc<Compiled>> {
        let mut kept = self.kept.lock().expect("no panic while it is held");
        let recent = kept.grammars.get(key).cloned();
        recent.or_else(|| kept.prepared.get(key)?.upgrade())
    }

    fn compiler(&self) -> Result<&Compiler, Status> {
        if let Some(compiler) = self.compiler.get() {
            return Ok(compiler);
        }
        let _making = self.making.lock().expect("no panic while it is held");
        if let Some(compiler) = self.compiler.get() {
            return Ok(compiler);
        }
        let unusable = |error: VocabularyError| {
            let error = paceline_process::chain(&error);
            tracing::warn!(error, "no grammars: the tokenizer's tokens have no bytes");
            let message = "grammar: expected none, because the tokens of this model's tokenizer have no bytes";
            Reason::InvalidArgument.field("grammar", message)
        };
        let vocabulary = Vocabulary::read(&self.tokenizer, self.vocab).map_err(unusable)?;
        let factory = compile::factory(&vocabulary).map_err(|error| error.status("grammar"))?;
        let kept = self.kept.lock().expect("no panic while it is held").bytes;
        self.memory.set_kept(kept + vocabulary.bytes);
        Ok(self.compiler.get_or_init(|| Compiler { vocabulary, factory }))
    }

    fn compile(&self, key: Key, source: &GrammarSource) -> Result<Arc<Compiled>, Status> {
        let Compiler { vocabulary, factory } = self.compiler()?;
        let parser = compile::compile(factory, source)
            .map_err(|PartError { field, error }| error.status(field))?;
        let bytes = compile::bytes(&parser);
        let compiled = Arc::new(Compiled { parser: Mutex::new(parser), bytes });
        let mut kept = self.kept.lock().expect("no panic while it is held");
        kept.add(key, Arc::clone(&compiled));
        self.memory.set_kept(kept.bytes + vocabulary.bytes);
        Ok(compiled)
    }

    fn open(&self, compiled: &Compiled, end_ids: Vec<u32>) -> Result<GrammarState, Status> {
        let vocabulary = &self.compiler()?.vocabulary;
        let parser = compiled.parser.lock().expect("no panic while it is held").deep_clone();
        let state = GrammarState::new(parser, vocabulary.end, end_ids);
        Ok(state.holding(self.memory.hold(compiled.bytes)))
    }
}

impl KeptGrammars {
    /// Adds a grammar and drops the least recently used ones.
    fn add(&mut self, key: Key, compiled: Arc<Compiled>) {
        self.bytes += compiled.bytes;
        if let Some((_, dropped)) = self.grammars.push(key, compiled) {
            self.bytes -= dropped.bytes;
        }
        while self.bytes > MAX_BYTES && self.grammars.len() > 1 {
            let Some((_, dropped)) = self.grammars.pop_lru() else { return };
            self.bytes -= dropped.bytes;
        }
    }

    /// Keeps a grammar as long as something holds it. Returns false if too many bytes are kept so.
    fn prepare(&mut self, key: Key, compiled: &Arc<Compiled>) -> bool {
        self.prepared.retain(|_, grammar| grammar.strong_count() > 0);
        let others = self.prepared.iter().filter(|(other, _)| **other != key);
        let held = others.filter_map(|(_, grammar)| Some(grammar.upgrade()?.bytes));
        if held.sum::<u64>() + compiled.bytes > MAX_PREPARED_BYTES {
            return false;
        }
        self.prepared.insert(key, Arc::downgrade(compiled));
        true
    }
}

fn bug(message: &str) -> Status {
    tracing::error!(message, "a grammar was not compiled");
    Reason::Bug.status("the request's grammar could not be compiled; the log has the reason")
}

/// The digest of all texts. Ids that end answers are not part of it.
fn digest(source: &GrammarSource) -> Key {
    let mut hash = Sha256::new();
    let mut add = |kind: u8, text: &str| {
        hash.update([kind]);
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    add(0, &source.frame);
    for part in &source.parts {
        let kind = match part.content {
            PartContent::JsonSchema(_) => 1,
            PartContent::Regex(_) => 2,
            PartContent::Lark(_) => 3,
        };
        add(kind | u8::from(part.lenient) << 7, part.content.text());
    }
    hash.finalize().into()
}

impl std::fmt::Debug for WaitingGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingGrammar").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
