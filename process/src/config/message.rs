//! Settings as messages of `Operations`.

use std::path::PathBuf;

use paceline_proto::v1;

use super::{Loaded, Setting};

impl From<&Setting> for v1::Setting {
    fn from(Setting { key, value, source }: &Setting) -> Self {
        let source = source.word().to_owned();
        Self { key: key.clone(), value: value.clone(), source, ..Self::default() }
    }
}

impl Loaded {
    /// All settings, and the files that are read.
    pub fn shown(&self) -> v1::ShowSettingsResponse {
        let path = |path: &Option<PathBuf>| {
            path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
        };
        v1::ShowSettingsResponse {
            settings: self.settings().iter().map(Into::into).collect(),
            config_file: path(&self.file),
            kept_file: path(&self.kept_file),
        }
    }
}
