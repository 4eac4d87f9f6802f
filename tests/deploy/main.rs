//! `deploy/`: what the files for systemd and launchd say, `paceline service`, which installs them, release
//! archives and packages, and the processes without `serve`,
//! started as a service manager starts them.

mod archive;
#[cfg(target_os = "linux")]
mod clean;
mod files;
mod installer;
mod manager;
mod many;
mod service;
