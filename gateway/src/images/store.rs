//! Image files for the target: one for each image, in the runtime directory's folder `images`,
//! readable by this user alone.
//!
//! The target removes a file after reading it. A file that still exists when its request has ended
//! is removed here. Files of a gateway that has ended are removed when the next one starts. Foreign
//! files in the folder are never touched.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use paceline_process::RuntimeDir;
use paceline_process::runtime_dir::{RuntimeDirError, private_dir};

use crate::life;

/// Bytes of all image files, at most: the directory may be in memory.
const MAX_BYTES: u64 = 1 << 30;

/// Name of a file that is being written, before its digest is known.
const UNFINISHED: &str = "new";
/// Characters of a SHA-256 digest in hexadecimal, with which the name of a finished file begins.
const DIGEST_CHARS: usize = 64;

/// Creates the folder, or removes the files that earlier gateways left in it, but those of a
/// gateway that still runs. Only regular files of this user with names of the store's own form are
/// removed. Everything else in the folder stays.
///
/// # Errors
/// The folder is a link, belongs to another user or is open to others; it cannot be created or
/// read.
pub fn prepare(runtime_dir: &RuntimeDir) -> Result<(), RuntimeDirError> {
    let path = runtime_dir.images();
    private_dir(&path)?;
    remove_left(runtime_dir, &path).map_err(|cause| RuntimeDirError::at(&path, cause))
}

fn remove_left(runtime_dir: &RuntimeDir, path: &Path) -> io::Result<()> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    // Files are examined and removed by this descriptor: the path may name another directory
    // meanwhile.
    let folder = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let own = nix::unistd::geteuid().as_raw();
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        let Some(epoch) = name.to_str().and_then(epoch_of) else { continue };
        if life::runs(runtime_dir, epoch) {
            continue;
        }
        let Ok(stat) = fstatat(&folder, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else {
            continue;
        };
        let is_file = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
        if is_file && stat.st_uid == own {
            unlinkat(&folder, name.as_os_str(), UnlinkatFlags::NoRemoveDir)?;
        }
    }
    Ok(())
}

/// The epoch in a name that [`ImageStore`] gives: `new-EPOCH-NUMBER` or `DIGEST-EPOCH-NUMBER`.
/// `None` for any other name.
fn epoch_of(name: &str) -> Option<u64> {
    let mut parts = name.split('-');
    let (begin, epoch, number) = (parts.next()?, parts.next()?, parts.next()?);
    let is_digest = begin.len() == DIGEST_CHARS
        && begin.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let count = |text: &str| text.parse::<u64>().ok().filter(|count| count.to_string() == text);
    let is_own = (begin == UNFINISHED || is_digest) && count(number).is_some();
    (is_own && parts.next().is_none()).then(|| count(epoch)).flatten()
}

/// The folder of image files, and the bytes in it.
#[derive(Debug)]
pub struct ImageStore {
    folder: PathBuf,
    /// Number of this gateway's life, so that no name is used twice.
    epoch: u64,
    next: AtomicU64,
    held: Arc<AtomicU64>,
    most: u64,
    /// The disk was full at the last write. The warning is logged once, until a file is complete.
    is_full: AtomicBool,
}

impl ImageStore {
    /// The store of this runtime directory, whose folder [`prepare`] created.
    pub fn new(runtime_dir: &RuntimeDir, epoch: u64) -> Self {
        Self {
            folder: runtime_dir.images(),
            epoch,
            next: AtomicU64::new(0),
            held: Arc::default(),
            most: MAX_BYTES,
            is_full: AtomicBool::new(false),
        }
    }

    /// Begins a file of this size.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] if there are too many bytes already; the system's own.
    pub fn begin(self: &Arc<Self>, bytes: u64) -> io::Result<UnfinishedFile> {
        let held = ReservedBytes::take(&self.held, bytes, self.most)?;
        let path = self.path(UNFINISHED);
        let file = create(&path)?;
        let inner = ImageFile { store: Arc::clone(self), link: FileLink { path }, _held: held };
        Ok(UnfinishedFile { file: BufWriter::with_capacity(1 << 16, file), inner })
    }

    /// A file could not be written because the disk is full.
    pub fn found_full(&self, cause: &io::Error) {
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(folder = %self.folder.display(), %cause, "no room for images; requests with images are refused");
        }
    }

    /// A file could be written.
    fn found_room(&self) {
        if self.is_full.swap(false, Ordering::Relaxed) {
            tracing::info!(folder = %self.folder.display(), "there is room for images again");
        }
    }

    /// A path that no other file has.
    fn path(&self, begin: &str) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!("{begin}-{}-{number}", self.epoch))
    }
}

/// A new file that only this user can read. An existing file or link is never opened.
fn create(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(flags.bits())
        .open(path)
}

/// Bytes that count against [`MAX_BYTES`] until this is dropped.
#[derive(Debug)]
struct ReservedBytes {
    all: Arc<AtomicU64>,
    bytes: u64,
}

impl ReservedBytes {
    fn take(all: &Arc<AtomicU64>, bytes: u64, most: u64) -> io::Result<Self> {
        let more = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= most);
        all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| io::Error::from(io::ErrorKind::StorageFull))?;
        Ok(Self { all: Arc::clone(all), bytes })
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A file that is being written. It is removed if it is dropped unfinished.
#[derive(Debug)]
pub struct UnfinishedFile {
    file: BufWriter<File>,
    inner: ImageFile,
}

impl UnfinishedFile {
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
    pub fn finish(self, digest: &[u8]) -> io::Result<ImageFile> {
        let Self { mut file, mut inner } = self;
        file.flush()?;
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = inner.store.path(&hex);
        fs::rename(&inner.link.path, &path)?;
        inner.link.path = path;
        inner.store.found_room();
        Ok(inner)
    }
}

/// A file in the folder. Dropping this removes the file, unless its reader did.
#[derive(Debug)]
pub struct ImageFile {
    store: Arc<ImageStore>,
    link: FileLink,
    _held: ReservedBytes,
}

impl ImageFile {
    /// The store of the file.
    pub fn store(&self) -> &ImageStore {
        &self.store
    }

    /// Name of the file in the folder.
    pub fn name(&self) -> String {
        self.link.name()
    }

    /// Links the file under another name, for another reader.
    ///
    /// # Errors
    /// The system's own.
    pub fn link(&self) -> io::Result<FileLink> {
        let own = self.name();
        let digest = own.split('-').next().unwrap_or_default();
        let path = self.store.path(digest);
        fs::hard_link(&self.link.path, &path)?;
        Ok(FileLink { path })
    }
}

/// A name of a file. Dropping this removes the name, unless its reader did.
#[derive(Debug)]
pub struct FileLink {
    path: PathBuf,
}

impl FileLink {
    /// The name in the folder.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

impl Drop for FileLink {
    fn drop(&mut self) {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "an image's file cannot be removed")
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use paceline_process::Config;

    use super::*;

    fn runtime(dir: &Path) -> RuntimeDir {
        let mut config = Config::default();
        if dir.exists() {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).expect("ours");
        }
        config.supervisor.runtime_dir = dir.display().to_string();
        let dir = RuntimeDir::locate(&config).expect("a short path");
        dir.prepare().expect("made");
        dir
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .expect("there")
            .map(|entry| entry.expect("fine").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_private_named_by_digest_and_removed_with_their_owner() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = runtime(temp.path());
        prepare(&dir).expect("made");
        let folder = dir.images();
        assert_eq!(fs::metadata(&folder).expect("there").mode() & 0o777, 0o700);
        let store = Arc::new(ImageStore::new(&dir, 3));
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
        assert_eq!(
            (names(&folder), store.held.load(Ordering::Relaxed)),
            (vec![], 0),
            "what is not finished is gone"
        );
    }

    #[test]
    fn bytes_of_unread_images_are_bounded() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = runtime(temp.path());
        prepare(&dir).expect("made");
        let store = Arc::new(ImageStore { most: 10, ..ImageStore::new(&dir, 1) });
        let first = store.begin(6).expect("room");
        assert_eq!(store.begin(5).expect_err("too many").kind(), io::ErrorKind::StorageFull);
        assert_eq!(store.begin(u64::MAX).expect_err("too many").kind(), io::ErrorKind::StorageFull);
        let _second = store.begin(4).expect("just fits");
        drop(first);
        assert!(store.begin(6).is_ok());
    }

    #[test]
    fn a_start_removes_left_files_of_the_stores_own_form_and_touches_no_foreign_file() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = runtime(&temp.path().join("run"));
        prepare(&dir).expect("made");
        let folder = dir.images();
        let store = Arc::new(ImageStore::new(&dir, 3));
        let mut finished = store.begin(1).expect("room");
        finished.write(b"x").expect("writable");
        let finished = finished.finish(&[0xab; 32]).expect("renamed");
        let link = finished.link().expect("linked");
        let unfinished = store.begin(1).expect("room");
        // As after a kill: no destructor removes a file.
        std::mem::forget((finished, link, unfinished));
        let digest = "ab".repeat(32);
        let foreign = [
            "holiday.jpg".to_owned(),
            "new".to_owned(),
            "new-1".to_owned(),
            "new-1-2.txt".to_owned(),
            "new-1-2-3".to_owned(),
            "new-01-2".to_owned(),
            "new-+1-2".to_owned(),
            "new--2".to_owned(),
            "New-1-2".to_owned(),
            digest.clone(),
            format!("{}-1-2", &digest[1..]),
            format!("{}-1-2", digest.to_uppercase()),
            format!("{digest}-1-x"),
        ];
        for name in &foreign {
            fs::write(folder.join(name), "precious").expect("writable");
        }
        // The store's own form, but no file of the store's.
        let elsewhere = temp.path().join("elsewhere");
        fs::create_dir(&elsewhere).expect("made");
        fs::write(elsewhere.join("mine"), "precious").expect("writable");
        let not_files = [format!("{digest}-9-1"), format!("{digest}-9-2"), "new-9-3".to_owned()];
        symlink(elsewhere.join("mine"), folder.join(&not_files[0])).expect("linked");
        symlink(&elsewhere, folder.join(&not_files[1])).expect("linked");
        fs::create_dir(folder.join(&not_files[2])).expect("made");
        fs::write(folder.join(&not_files[2]).join("new-1-2"), "precious").expect("writable");

        // Another gateway, which still drains.
        let _lock = dir.lock("gateway-4").expect("free");
        let draining = Arc::new(ImageStore::new(&dir, 4));
        let kept = draining.begin(1).expect("room");
        prepare(&dir).expect("cleaned");
        assert_eq!(names(&folder).iter().filter(|name| *name == "new-4-0").count(), 1);
        drop(kept);
        let mut expected: Vec<String> = foreign.iter().chain(&not_files).cloned().collect();
        expected.sort();
        assert_eq!(names(&folder), expected);
        for name in &foreign {
            assert_eq!(fs::read_to_string(folder.join(name)).expect("there"), "precious");
        }
        assert_eq!(
            (names(&elsewhere), names(&folder.join("new-9-3"))),
            (vec!["mine".into()], vec!["new-1-2".into()])
        );
    }

    #[test]
    fn a_folder_that_is_a_link_or_open_to_others_is_refused_and_left_as_it_is() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = runtime(&temp.path().join("run"));
        let (folder, elsewhere) = (dir.images(), temp.path().join("elsewhere"));
        fs::create_dir(&elsewhere).expect("made");
        let left = format!("{}-1-2", "0a".repeat(32));
        fs::write(elsewhere.join(&left), "x").expect("writable");
        symlink(&elsewhere, &folder).expect("linked");
        let error = prepare(&dir).expect_err("a link").to_string();
        assert!(error.contains("a symbolic link"), "{error}");
        assert_eq!(names(&elsewhere), [left.as_str()]);
        fs::remove_file(&folder).expect("ours");
        fs::rename(&elsewhere, &folder).expect("renamed");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("ours");
        let error = prepare(&dir).expect_err("open to others").to_string();
        assert!(error.contains("mode 0755") && error.contains("chmod 700"), "{error}");
        assert_eq!(
            (names(&folder), fs::metadata(&folder).expect("there").mode() & 0o777),
            (vec![left], 0o755)
        );
    }

    #[test]
    fn an_existing_file_is_never_opened() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = runtime(&temp.path().join("run"));
        prepare(&dir).expect("made");
        fs::write(temp.path().join("mine"), "precious").expect("writable");
        let store = Arc::new(ImageStore::new(&dir, 1));
        symlink(temp.path().join("mine"), dir.images().join("new-1-0")).expect("linked");
        assert_eq!(store.begin(1).expect_err("taken").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(temp.path().join("mine")).expect("there"), "precious");
    }
}
