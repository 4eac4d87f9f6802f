//! How an agent is started: words, environment, and the files in its directory.

use std::path::Path;
use std::{fs, io};

/// How an agent is started.
#[derive(Debug, Default)]
pub struct LaunchPlan {
    /// Words before the user's.
    pub words: Vec<String>,
    /// Variables of the environment that are set.
    pub set: Vec<(&'static str, String)>,
    /// Variables of the environment that are removed.
    pub removed: &'static [&'static str],
    /// Files in the agent's directory.
    pub files: Vec<LaunchFile>,
}

/// A file in the agent's directory.
#[derive(Debug)]
pub struct LaunchFile {
    pub name: &'static str,
    pub content: String,
    /// Whether the agent changes the file: a file that is there already is left as it is then.
    pub is_agents_own: bool,
}

impl LaunchPlan {
    /// Writes the files. A file is replaced as a whole, because an agent that runs may read it.
    ///
    /// # Errors
    /// The system's own.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        for file in &self.files {
            let path = dir.join(file.name);
            if file.is_agents_own && path.exists() {
                continue;
            }
            let part = dir.join(format!("{}.{}.part", file.name, std::process::id()));
            fs::write(&part, &file.content)?;
            fs::rename(&part, &path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_agents_own_is_written_once_and_another_each_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let written = |content: &str| {
            let file =
                |name, is_agents_own| LaunchFile { name, content: content.into(), is_agents_own };
            let files = vec![file("own", true), file("ours", false)];
            LaunchPlan { files, ..Default::default() }.write(dir.path()).expect("written");
            ["own", "ours"].map(|name| fs::read_to_string(dir.path().join(name)).expect("read"))
        };
        assert_eq!(written("first"), ["first", "first"]);
        assert_eq!(written("second"), ["first", "second"]);
        let count = fs::read_dir(dir.path()).expect("a directory").count();
        assert_eq!(count, 2, "no part is left");
    }
}
