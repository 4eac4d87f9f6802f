//! Directories of the user.

use std::path::PathBuf;

/// The user's home directory.
pub fn home_dir() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(Into::into)
}

/// The user's cache directory.
pub fn cache_dir() -> Option<PathBuf> {
    if cfg!(target_os = "macos") {
        return home_dir().map(|home| home.join("Library/Caches"));
    }
    xdg("XDG_CACHE_HOME", ".cache")
}

/// A directory that the specification of base directories names (XDG): the variable's, if it is
/// absolute, else the one below the user's home.
pub fn xdg(variable: &str, below_home: &str) -> Option<PathBuf> {
    let set = std::env::var_os(variable).map(PathBuf::from).filter(|dir| dir.is_absolute());
    set.or_else(|| home_dir().map(|home| home.join(below_home)))
}
