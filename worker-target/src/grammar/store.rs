//! Compiled grammars by the digest of their texts. Grammars are compiled one at a time on a thread of
//! their own, off the engine's; the least recently used ones are dropped.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use llguidance::{ParserFactory, TokenParser};
use lru::LruCache;
use paceline_process::worker::Progress;
use paceline_proto::status::{Reason, ReasonStatus as _};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, oneshot};
use tonic::Status;

use super::compile::{self, PartError};
use super::memory::GrammarMemory;
use super::vocabulary::{Vocabulary, VocabularyError};
use super::{GrammarSource, GrammarState, PartContent};

/// Compiled grammars that are kept.
const MAX_GRAMMARS: NonZeroUsize = NonZeroUsize::new(256).expect("not 0");
/// Bytes of compiled grammars that are kept.
const MAX_BYTES: u64 = 64 << 20;
/// Requests that may wait for the compiler. More are refused.
const MAX_WAITING: usize = 64;
/// How long a request waits for its grammar's compilation, once that has begun.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Stack of the compiler's thread. The compiler calls itself for each level of a schema; a level
/// takes up to 40 KiB in a build without optimization.
const STACK_BYTES: usize = 32 << 20;

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
    /// Made for the first grammar, because that takes up to a second and tens of MiB.
    compiler: OnceLock<Compiler>,
    kept: Mutex<Kept>,
    /// One compilation at a time.
    seat: Arc<Semaphore>,
    /// Requests that wait or compile.
    places: Semaphore,
    memory: Arc<GrammarMemory>,
}

struct Kept {
    grammars: LruCache<Key, Arc<Compiled>>,
    bytes: u64,
}

impl Grammars {
    /// Grammars for the model whose `tokenizer.json` this is, with `vocab` ids.
    pub(crate) fn new(tokenizer: PathBuf, vocab: usize, progress: Arc<Progress>) -> Self {
        let kept = Kept { grammars: LruCache::new(MAX_GRAMMARS), bytes: 0 };
        Self {
            shared: Arc::new(Shared {
                tokenizer,
                vocab,
                compiler: OnceLock::new(),
                kept: Mutex::new(kept),
                seat: Arc::new(Semaphore::new(1)),
                places: Semaphore::new(MAX_WAITING),
                memory: Arc::new(GrammarMemory::new(progress)),
            }),
        }
    }

    /// The state of a new sequence in this grammar.
    ///
    /// # Errors
    /// The grammar cannot be enforced or needs too much; too many requests wait for the compiler;
    /// the model's tokenizer is of a kind that has no bytes.
    pub(crate) async fn state(&self, source: GrammarSource) -> Result<GrammarState, Status> {
        let key = digest(&source);
        if let Some(compiled) = self.shared.kept(&key) {
            return self.shared.open(&compiled, &source);
        }
        let _place = self.shared.places.try_acquire().map_err(|_| {
            Reason::QueueFull.status("more requests wait for the compiler of grammars than may")
        })?;
        let seat = Arc::clone(&self.shared.seat).acquire_owned().await;
        let seat = seat.map_err(|_| bug("the compiler of grammars is closed"))?;
        // Compiled for another request meanwhile.
        if let Some(compiled) = self.shared.kept(&key) {
            return self.shared.open(&compiled, &source);
        }
        let (done, outcome) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let job = source.clone();
        let work = move || {
            // Free when the work is done, not when the request has gone.
            let _seat = seat;
            // The request may have gone.
            let _ = done.send(shared.compile(key, &job));
        };
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        thread.spawn(work).map_err(|error| bug(&format!("no thread for a grammar: {error}")))?;
        match tokio::time::timeout(TIMEOUT + self.shared.loading(), outcome).await {
            Ok(Ok(compiled)) => {
                let compiled = compiled?;
                self.shared.open(&compiled, &source)
            }
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
        kept.grammars.get(key).cloned()
    }

    fn compiler(&self) -> Result<&Compiler, Status> {
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
        // One thread compiles at a time, so that no other one has set it.
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

    fn open(&self, compiled: &Compiled, source: &GrammarSource) -> Result<GrammarState, Status> {
        let vocabulary = &self.compiler()?.vocabulary;
        let parser = compiled.parser.lock().expect("no panic while it is held").deep_clone();
        let state = GrammarState::new(parser, vocabulary.end, source.end_ids.clone());
        Ok(state.holding(self.memory.hold(compiled.bytes)))
    }
}

impl Kept {
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

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}
