//! The API keys: read from a file of digests, compared in constant time, read again when the file
//! changes. A changed file that cannot be used leaves the keys as they are, so that a mistake in it
//! locks no client out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use paceline_checkpoint::digest::hex;
use paceline_process::keys::{self, KeyLine};
use paceline_process::{Config, ConfigError};
use paceline_vocabulary::KeyId;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use crate::lock::lock;

/// The configuration key of the file.
const SETTING: &str = "gateway.api_keys_file";
/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Class of requests whose key has none of its own.
pub const DEFAULT_CLASS: &str = "default";
/// Class of requests with images whose key has none of its own.
pub const IMAGE_CLASS: &str = "image";

/// The owner of a request's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The key's name.
    pub name: Arc<str>,
    /// The number of the name in the other processes: shares and limits are counted by it.
    pub id: KeyId,
    /// Traffic class of the key.
    pub class: Arc<str>,
    /// The scope of its prefixes in the prefix cache: one for each key, from which the key cannot
    /// be computed.
    pub scope: Arc<str>,
}

/// The metadata by which a change of a file is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// One known key.
struct KnownKey {
    digest: keys::Digest,
    principal: Principal,
}

/// The known keys.
pub struct Keys {
    path: PathBuf,
    classes: BTreeMap<String, String>,
    known: RwLock<Arc<[KnownKey]>>,
    /// Of the file at the last check, whether it could be used or not.
    last: Mutex<Option<FileStamp>>,
}

/// Shows the path of the file and the number of keys: secrets are never printed.
impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({} of {})", self.count(), self.path.display())
    }
}

impl Keys {
    /// Reads the file that the configuration names; `None` if it names none.
    ///
    /// # Errors
    /// The file cannot be read, others may read or write it, or a line is malformed.
    pub fn configured(config: &Config) -> Result<Option<Self>, ConfigError> {
        if config.gateway.api_keys_file.is_empty() {
            return Ok(None);
        }
        let path = PathBuf::from(&config.gateway.api_keys_file);
        let refuse = |what| ConfigError::Value { key: SETTING.to_owned(), what };
        let (lines, stamp) = read(&path).map_err(refuse)?;
        let classes = config.classes.clone();
        let known = RwLock::new(known(lines, &classes));
        Ok(Some(Self { path, classes, known, last: Mutex::new(Some(stamp)) }))
    }

    /// The owner of this key. Every known key is compared, each in constant time, so that the time
    /// tells neither which one it is nor how much of it is right.
    pub fn find(&self, key: &str) -> Option<Principal> {
        if key.len() > keys::MAX_KEY_BYTES {
            return None;
        }
        let digest = keys::digest(key);
        let known = Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner));
        let (mut found, mut place) = (Choice::from(0), 0u64);
        for (at, one) in (0u64..).zip(known.iter()) {
            let same = one.digest.ct_eq(&digest);
            place.conditional_assign(&at, same);
            found |= same;
        }
        bool::from(found)
            .then(|| usize::try_from(place).ok().and_then(|at| known.get(at)))
            .flatten()
            .map(|one| one.principal.clone())
    }

    /// The owner of the key with this scope, if the key is still known.
    pub fn of_scope(&self, scope: &str) -> Option<Principal> {
        let known = Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner));
        known.iter().map(|one| &one.principal).find(|owner| &*owner.scope == scope).cloned()
    }

    /// Reads the file again if it has changed, or if `asked`.
    pub fn reload(&self, asked: bool) {
        let stamp = std::fs::metadata(&self.path).ok().map(|meta| FileStamp::of(&meta));
        {
            let mut last = lock(&self.last);
            if *last == stamp && !asked {
                return;
            }
            *last = stamp;
        }
        match read(&self.path) {
            Ok((lines, _)) => {
                *self.known.write().unwrap_or_else(PoisonError::into_inner) =
                    known(lines, &self.classes);
                tracing::info!(keys = self.count(), "API keys read again");
            }
            Err(error) => tracing::warn!(
                error,
                keys = self.count(),
                "the API keys stay as they were: {SETTING} cannot be used"
            ),
        }
    }

    fn count(&self) -> usize {
        self.known.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl FileStamp {
    fn of(meta: &std::fs::Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            bytes: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

fn known(lines: Vec<KeyLine>, classes: &BTreeMap<String, String>) -> Arc<[KnownKey]> {
    let one = |KeyLine { name, digest }| {
        let class = classes.get(&name).map_or(DEFAULT_CLASS, String::as_str);
        let scope = hex(&Sha256::new()
            .chain_update(b"paceline cache scope")
            .chain_update(digest)
            .finalize()[..16]);
        let principal = Principal {
            class: class.into(),
            id: id_of(&name),
            name: name.into(),
            scope: scope.into(),
        };
        KnownKey { digest, principal }
    };
    lines.into_iter().map(one).collect()
}

/// The number of a key's name. Of the 10,000 names there may be, two have the same number once in
/// 10^11 files.
fn id_of(name: &str) -> KeyId {
    let digest =
        Sha256::new().chain_update(b"paceline key name").chain_update(name.as_bytes()).finalize();
    let number = digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    // 0 is the number of requests without a key.
    KeyId(number.max(1))
}

/// The lines of the file, which only this user may read or write.
fn read(path: &Path) -> Result<(Vec<KeyLine>, FileStamp), String> {
    let failed = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let mut file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    let wrong = |found: String| {
        let expected = "a file of this user that nobody else may read or write (0600)";
        Err(format!("{}: expected {expected}, found {found}; chmod 600 it", path.display()))
    };
    if !meta.is_file() {
        return wrong("no file".into());
    }
    if meta.mode() & 0o077 != 0 {
        return wrong(format!("mode {:04o}", meta.mode() & 0o7777));
    }
    if meta.uid() != nix::unistd::geteuid().as_raw() {
        return wrong(format!("one of user {}", meta.uid()));
    }
    if meta.size() > MAX_FILE_BYTES {
        return Err(format!(
            "{}: expected at most {MAX_FILE_BYTES} bytes, found {}",
            path.display(),
            meta.size()
        ));
    }
    let mut text = String::new();
    // If the file grows meanwhile, no more than the bound is read.
    (&mut file).take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
    let lines = keys::parse(&text)
        .map_err(|error| format!("{}: {}", path.display(), paceline_process::chain(&error)))?;
    Ok((lines, FileStamp::of(&meta)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const ALICE: &str = "pl_alice_0123456789";
    const BOB: &str = "pl_bob_0123456789ab";

    struct Place {
        dir: tempfile::TempDir,
        config: Config,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let mut config = Config::default();
            config.gateway.api_keys_file = dir.path().join("keys").display().to_string();
            config.classes.insert("alice".into(), "code".into());
            Self { dir, config }
        }

        fn write(&self, text: &str, mode: u32) {
            // A new file in place of the old one, as editors and tools do.
            let fresh = self.dir.path().join("fresh");
            std::fs::write(&fresh, text).expect("writable");
            std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(mode)).expect("ours");
            std::fs::rename(fresh, &self.config.gateway.api_keys_file).expect("renamed");
        }

        fn refused(&self) -> String {
            Keys::configured(&self.config).expect_err("refused").to_string()
        }
    }

    fn line(name: &str, key: &str) -> String {
        format!("{}\n", KeyLine::of(name, key).expect("fine"))
    }

    #[test]
    fn a_key_has_its_class_and_a_scope_of_its_own() {
        let place = Place::new();
        place.write(
            &(line("alice", ALICE) + &line("bob", BOB) + &line("alice", "pl_alice_the_second")),
            0o600,
        );
        let keys = Keys::configured(&place.config).expect("fine").expect("named");
        let (alice, bob) = (keys.find(ALICE).expect("known"), keys.find(BOB).expect("known"));
        let second = keys.find("pl_alice_the_second").expect("known");
        assert_eq!(
            (&*alice.name, &*alice.class, &*bob.name, &*bob.class),
            ("alice", "code", "bob", "default")
        );
        assert_eq!((&second.name, &second.class), (&alice.name, &alice.class));
        assert_eq!(second.id, alice.id, "limits go by the name");
        assert!(alice.id != bob.id && alice.id != KeyId::NONE && bob.id != KeyId::NONE);
        assert!(alice.scope != bob.scope && alice.scope != second.scope && alice.scope.len() == 32);
        assert!(!hex(&keys::digest(ALICE)).contains(&*alice.scope));
        for wrong in
            ["", "pl_alice", &format!("{ALICE} "), &ALICE.to_uppercase(), &"x".repeat(1 << 20)]
        {
            assert_eq!(keys.find(wrong), None);
        }
        assert!(!format!("{keys:?}").contains("alice"));
        assert!(Keys::configured(&Config::default()).expect("fine").is_none());
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_with_the_remedy() {
        let place = Place::new();
        assert!(
            place.refused().contains("gateway.api_keys_file: cannot read"),
            "{}",
            place.refused()
        );
        for mode in [0o644, 0o640, 0o604, 0o620, 0o602, 0o660] {
            place.write(&line("alice", ALICE), mode);
            assert!(
                place.refused().contains(&format!("mode {mode:04o}; chmod 600")),
                "{}",
                place.refused()
            );
        }
        place.write("", 0o600);
        assert!(place.refused().contains("at least one key"), "{}", place.refused());
        place.write(&format!("alice:{ALICE}\n"), 0o600);
        assert!(
            place.refused().contains("line 1") && !place.refused().contains(ALICE),
            "{}",
            place.refused()
        );
        place.write(&line("alice", ALICE), 0o400);
        assert!(Keys::configured(&place.config).is_ok());
    }

    #[test]
    fn a_changed_file_counts_and_a_broken_one_does_not() {
        let place = Place::new();
        place.write(&line("alice", ALICE), 0o600);
        let keys = Keys::configured(&place.config).expect("fine").expect("named");
        keys.reload(false);
        assert!(keys.find(ALICE).is_some() && keys.find(BOB).is_none());
        let alice = keys.find(ALICE).expect("known");
        assert_eq!(keys.of_scope(&alice.scope), Some(alice.clone()));
        place.write(&line("bob", BOB), 0o600);
        keys.reload(false);
        assert!(keys.find(ALICE).is_none() && keys.find(BOB).is_some(), "rotated");
        assert!(keys.of_scope(&alice.scope).is_none() && keys.of_scope("").is_none());
        for (text, mode) in
            [(line("alice", ALICE), 0o644), ("alice".into(), 0o600), (String::new(), 0o600)]
        {
            place.write(&text, mode);
            keys.reload(false);
            keys.reload(true);
            assert!(keys.find(BOB).is_some() && keys.find(ALICE).is_none(), "kept");
        }
        std::fs::remove_file(&place.config.gateway.api_keys_file).expect("there");
        keys.reload(false);
        assert!(keys.find(BOB).is_some(), "kept");
        place.write(&line("alice", ALICE), 0o600);
        keys.reload(false);
        assert!(keys.find(ALICE).is_some() && keys.find(BOB).is_none(), "there again");
    }
}
