//! `deploy/`: what the files for systemd and launchd say, and the processes without `serve`,
//! started as a service manager starts them.

mod files;
mod manager;
