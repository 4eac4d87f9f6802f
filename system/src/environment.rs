//! Variables of the environment that are not settings. Not here: settings, which come through
//! [`crate::config`].

/// An environment variable by which our processes communicate. `None` if it is not set, or is not
/// UTF-8.
pub fn env(name: &str) -> Option<String> {
    env_os(name)?.into_string().ok()
}

/// An environment variable that names a file or directory, which need not be UTF-8.
pub fn env_os(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}
