//! Pictures on their way to the target: one file each in the runtime directory's folder `pictures`, readable by this user alone.
//! Whoever reads one unlinks it; what is left when its request has ended is removed here, and all of them when a gateway starts.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paceline_process::RuntimeDir;
use paceline_process::runtime_dir::RuntimeDirError;

/// Bytes of pictures on their way, at most: the directory may be memory.
const MAX_BYTES: u64 = 1 << 30;

/// Makes the folder, or empties it of what an earlier gateway left.
///
/// # Errors
/// It is no directory of this user's, or cannot be made.
pub fn prepare(runtime_dir: &RuntimeDir) -> Result<(), RuntimeDirError> {
    let path = folder(runtime_dir);
    let failed = |cause| RuntimeDirError::Io { path: path.clone(), cause };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(failed(cause)),
        _ => {}
    }
    // Of the thing itself: a link to elsewhere is not followed.
    let meta = fs::symlink_metadata(&path).map_err(failed)?;
    if !meta.is_dir() || meta.uid() != nix::unistd::geteuid().as_raw() {
        let what = if meta.is_dir() { "a directory" } else { "no directory" };
        let found = format!("{what} of owner {}, mode {:04o}", meta.uid(), meta.mode() & 0o777);
        return Err(RuntimeDirError::Unsafe { path, found });
    }
    if meta.mode() & 0o777 != 0o700 {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    for entry in fs::read_dir(&path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_type().map_err(failed)?.is_dir() {
            fs::remove_file(entry.path()).map_err(failed)?;
        }
    }
    Ok(())
}

fn folder(runtime_dir: &RuntimeDir) -> PathBuf {
    runtime_dir.path().join("pictures")
}

/// Where pictures are written.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    /// Number of this gateway's life, so that no name comes twice.
    epoch: u64,
    next: AtomicU64,
    held: Arc<AtomicU64>,
    most: u64,
}

impl Store {
    /// The folder of this runtime directory, which [`prepare`] made.
    pub fn new(runtime_dir: &RuntimeDir, epoch: u64) -> Self {
        Self { folder: folder(runtime_dir), epoch, next: AtomicU64::new(0), held: Arc::default(), most: MAX_BYTES }
    }

    /// Begins a file of so many bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] if there are too many bytes already; the system's own.
    pub fn begin(self: &Arc<Self>, bytes: u64) -> io::Result<Writing> {
        let held = Held::take(&self.held, bytes, self.most)?;
        let path = self.path("new");
        let file = create(&path)?;
        let picture = Stored { store: Arc::clone(self), path, _held: held };
        Ok(Writing { file: BufWriter::with_capacity(1 << 16, file), picture })
    }

    /// A path of its own.
    fn path(&self, begin: &str) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!("{begin}-{}-{number}", self.epoch))
    }
}

/// A new file that nobody else can read. One that is there is never opened, be it a link.
fn create(path: &Path) -> io::Result<File> {
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_CLOEXEC;
    OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(flags.bits()).open(path)
}

/// Bytes that count as long as this lives.
#[derive(Debug)]
struct Held {
    all: Arc<AtomicU64>,
    bytes: u64,
}

impl Held {
    fn take(all: &Arc<AtomicU64>, bytes: u64, most: u64) -> io::Result<Self> {
        let more = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= most);
        all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map_err(|_| io::Error::from(io::ErrorKind::StorageFull))?;
        Ok(Self { all: Arc::clone(all), bytes })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A file that is being written; gone if it is not finished.
#[derive(Debug)]
pub struct Writing {
    file: BufWriter<File>,
    picture: Stored,
}

impl Writing {
    /// Appends bytes.
    ///
    /// # Errors
    /// The system's own.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Ends the file and gives it the name that begins with its digest.
    ///
    /// # Errors
    /// The system's own.
    pub fn finish(self, digest: &[u8]) -> io::Result<Stored> {
        let Self { mut file, mut picture } = self;
        file.flush()?;
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = picture.store.path(&hex);
        fs::rename(&picture.path, &path)?;
        picture.path = path;
        Ok(picture)
    }
}

/// A file in the folder; removed when this is dropped, if whoever it was for did not.
#[derive(Debug)]
pub struct Stored {
    store: Arc<Store>,
    path: PathBuf,
    _held: Held,
}

impl Stored {
    /// Its name in the folder.
    pub fn name(&self) -> String {
        name(&self.path)
    }

    /// The same bytes under another name, for another reader.
    ///
    /// # Errors
    /// The system's own.
    pub fn link(&self) -> io::Result<Link> {
        let own = name(&self.path);
        let digest = own.split('-').next().unwrap_or_default();
        let path = self.store.path(digest);
        fs::hard_link(&self.path, &path)?;
        Ok(Link { path })
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Another name of a file; removed when this is dropped.
#[derive(Debug)]
pub struct Link {
    path: PathBuf,
}

impl Link {
    /// Its name in the folder.
    pub fn name(&self) -> String {
        name(&self.path)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Whoever it was for may have removed it: that is as well.
fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => tracing::warn!(%error, "a picture's file cannot be removed"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use paceline_process::Config;

    use super::*;

    fn runtime(dir: &Path) -> RuntimeDir {
        let mut config = Config::default();
        config.supervisor.runtime_dir = dir.display().to_string();
        let dir = RuntimeDir::locate(&config).expect("a short path");
        dir.prepare().expect("made");
        dir
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).expect("there").map(|entry| name(&entry.expect("fine").path())).collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_private_named_by_digest_and_gone_in_the_end() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = runtime(temp.path());
        prepare(&dir).expect("made");
        let folder = folder(&dir);
        assert_eq!(fs::metadata(&folder).expect("there").mode() & 0o777, 0o700);
        let store = Arc::new(Store::new(&dir, 3));
        let mut writing = store.begin(5).expect("room");
        writing.write(b"he").and_then(|()| writing.write(b"llo")).expect("writable");
        let stored = writing.finish(&[0xab, 0x01]).expect("renamed");
        assert!(stored.name().starts_with("ab01-3-"), "{}", stored.name());
        let path = folder.join(stored.name());
        assert_eq!(
            (fs::read(&path).expect("there"), fs::metadata(&path).expect("there").mode() & 0o777),
            (b"hello".to_vec(), 0o600)
        );
        let (one, two) = (stored.link().expect("linked"), stored.link().expect("linked"));
        assert_eq!(names(&folder).len(), 3);
        assert!(one.name() != two.name() && one.name().starts_with("ab01-"));
        // Its reader removed it: fine.
        fs::remove_file(folder.join(one.name())).expect("there");
        assert_eq!(fs::read(folder.join(two.name())).expect("the others stay"), b"hello");
        drop((one, two, stored));
        assert_eq!((names(&folder), store.held.load(Ordering::Relaxed)), (vec![], 0));
        drop(store.begin(5).expect("room"));
        assert_eq!((names(&folder), store.held.load(Ordering::Relaxed)), (vec![], 0), "what is not finished is gone");
    }

    #[test]
    fn bytes_on_their_way_are_bounded() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = runtime(temp.path());
        prepare(&dir).expect("made");
        let store = Arc::new(Store { most: 10, ..Store::new(&dir, 1) });
        let first = store.begin(6).expect("room");
        assert_eq!(store.begin(5).expect_err("too many").kind(), io::ErrorKind::StorageFull);
        assert_eq!(store.begin(u64::MAX).expect_err("too many").kind(), io::ErrorKind::StorageFull);
        let _second = store.begin(4).expect("just fits");
        drop(first);
        assert!(store.begin(6).is_ok());
    }

    #[test]
    fn a_start_empties_the_folder_and_follows_no_link() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = runtime(&temp.path().join("run"));
        let elsewhere = temp.path().join("elsewhere");
        fs::create_dir(&elsewhere).expect("made");
        fs::write(elsewhere.join("mine"), "x").expect("writable");
        fs::create_dir(folder(&dir)).expect("made");
        fs::write(folder(&dir).join("left"), "x").expect("writable");
        std::os::unix::fs::symlink(elsewhere.join("mine"), folder(&dir).join("link")).expect("linked");
        prepare(&dir).expect("emptied");
        assert_eq!((names(&folder(&dir)), names(&elsewhere)), (vec![], vec!["mine".to_owned()]));
        assert_eq!(fs::metadata(folder(&dir)).expect("there").mode() & 0o777, 0o700);
        // A name that is taken is not written through.
        let store = Arc::new(Store::new(&dir, 1));
        std::os::unix::fs::symlink(elsewhere.join("mine"), folder(&dir).join("new-1-0")).expect("linked");
        assert_eq!(store.begin(1).expect_err("taken").kind(), io::ErrorKind::AlreadyExists);
        fs::remove_dir_all(folder(&dir)).expect("ours");
        std::os::unix::fs::symlink(&elsewhere, folder(&dir)).expect("linked");
        let error = prepare(&dir).expect_err("a link").to_string();
        assert!(error.contains("no directory"), "{error}");
        assert_eq!(names(&elsewhere), ["mine"]);
    }
}
