//! The process that listens on a port: by /proc where there is one, else by `lsof`. Processes of other
//! users, and those that let nobody read them, are not found.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::timeout;

use crate::service::orders::Order;

/// Longest wait for `lsof`.
const LIMIT: Duration = Duration::from_secs(5);
/// State of a listening socket in /proc/net/tcp.
const LISTENING: &str = "0A";

/// Name and id of the process that listens on this port.
pub(super) async fn of(port: u16) -> Option<(String, u32)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    if tables.iter().any(Result::is_ok) {
        let text: String = tables.into_iter().flatten().collect();
        return process_with(&sockets(&text, port));
    }
    let place = format!("-iTCP:{port}");
    let order = Order::new(&["lsof", "-nP", &place, "-sTCP:LISTEN", "-Fpc"]);
    named(&timeout(LIMIT, order.answer()).await.ok()?.ok()??)
}

/// Links of the sockets that listen on this port, by lines of /proc/net/tcp (proc(5)).
fn sockets(table: &str, port: u16) -> Vec<PathBuf> {
    let end = format!(":{port:04X}");
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listens = fields.get(1)?.ends_with(&end) && *fields.get(3)? == LISTENING;
        listens.then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")).into())
    };
    table.lines().filter_map(socket).collect()
}

/// The first process that has one of these sockets open.
fn process_with(sockets: &[PathBuf]) -> Option<(String, u32)> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|link| sockets.contains(&link))
    };
    let pid = pids.into_iter().find(has)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((name.trim().to_owned(), pid))
}

/// The first process of `lsof -F pc`: lines with the id after `p`, and with the name after `c`.
fn named(listed: &str) -> Option<(String, u32)> {
    let field = |sign| listed.lines().find_map(|line| line.strip_prefix(sign));
    Some((field('c')?.to_owned(), field('p')?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_that_listen_on_the_port_count() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1
   1: 0100007F:1F90 0100007F:8888 01 00000000:00000000 00:00000000 00000000     0        0 78 1
   2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 79 1
";
        assert_eq!(sockets(table, 8080), [PathBuf::from("socket:[77]")]);
        assert_eq!(named("p12\ncpython3\nf5\n"), Some(("python3".into(), 12)));
        assert_eq!(named(""), None);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn this_process_is_found_by_a_port_that_it_listens_on() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        assert_eq!(of(port).await.map(|(_, pid)| pid), Some(std::process::id()));
        drop(listener);
        assert_eq!(of(port).await, None);
    }
}
