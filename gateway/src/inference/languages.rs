//! The text side of the served model: read at the start, and again when an operator has the target
//! serve another model.

use std::path::Path;
use std::sync::{Arc, RwLock};

use paceline_text::checkpoint::{Checkpoint, LoadError};
use paceline_text::prompt::Language;
use paceline_text::prompt::format::ToolCallFormat;
use paceline_vocabulary::report::ModelInfo;

/// The text side of a model, as requests use it.
#[derive(Clone, Debug)]
pub struct ServedLanguage {
    /// Tokenizer, template and the other text files.
    pub language: Arc<Language>,
    /// How many languages there were before. A request that was checked with one is not served with
    /// another.
    pub version: u64,
    /// Path of the model; empty fits every model.
    path: String,
}

/// The text side of the model that is served. Clones are the same.
#[derive(Clone, Debug)]
pub struct Languages {
    current: Arc<RwLock<ServedLanguage>>,
    orders: LanguageOrders,
}

/// What the operator says about the text side of each model.
#[derive(Clone, Copy, Debug)]
pub struct LanguageOrders {
    /// The format of tool calls; `None` leaves it to the template.
    pub format: Option<ToolCallFormat>,
    /// Whether images are served, if the model reads them (`target.vision`).
    pub vision: bool,
}

impl Default for LanguageOrders {
    /// Everything as the model has it.
    fn default() -> Self {
        Self { format: None, vision: true }
    }
}

impl LanguageOrders {
    /// The text side of the model in this directory. Without vision no file about images is read.
    ///
    /// # Errors
    /// A file is missing or cannot be used.
    pub fn read(self, dir: &Path) -> Result<Language, LoadError> {
        let checkpoint = Checkpoint::read(dir)?;
        let language = Language::new(match self.vision {
            true => checkpoint,
            false => checkpoint.without_vision(),
        })?;
        Ok(match self.format {
            Some(format) => language.with_tool_call_format(format),
            None => language,
        })
    }
}

impl From<Arc<Language>> for Languages {
    /// One text side for every model.
    fn from(language: Arc<Language>) -> Self {
        Self::new(language, String::new(), LanguageOrders::default())
    }
}

impl Languages {
    fn new(language: Arc<Language>, path: String, orders: LanguageOrders) -> Self {
        let current = ServedLanguage { language, version: 0, path };
        Self { current: Arc::new(RwLock::new(current)), orders }
    }

    /// Reads the model in this directory.
    ///
    /// # Errors
    /// A file is missing or cannot be used.
    pub fn read(dir: &Path, orders: LanguageOrders) -> Result<Self, LoadError> {
        let language = Arc::new(orders.read(dir)?);
        Ok(Self::new(language, dir.display().to_string(), orders))
    }

    /// The present text side.
    pub fn now(&self) -> ServedLanguage {
        // Only whole values are written, so a panic elsewhere leaves none broken.
        self.current.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The text side of this model; `None` until its files are read. A model without a path has the
    /// present one.
    pub fn of(&self, model: &ModelInfo) -> Option<ServedLanguage> {
        let current = self.now();
        let is_known = [current.path.as_str(), ""].contains(&model.path.as_str());
        (current.path.is_empty() || is_known).then_some(current)
    }

    /// Reads the files of the model in this directory, which is served from now on.
    ///
    /// # Errors
    /// A file is missing or cannot be used, and the text side is the earlier one.
    pub fn follow(&self, path: &str) -> Result<(), LoadError> {
        let language = Arc::new(self.orders.read(Path::new(path))?);
        let mut current = self.current.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let version = current.version + 1;
        *current = ServedLanguage { language, version, path: path.to_owned() };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_model_has_its_own_text_side_once_its_files_are_read() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
        let languages =
            Languages::read(&demo, LanguageOrders::default()).expect("all its files are there");
        let model =
            |path: &Path| ModelInfo { path: path.display().to_string(), ..Default::default() };
        assert_eq!(languages.of(&model(&demo)).expect("the same").version, 0);
        let copy = tempfile::tempdir().expect("a directory");
        for file in std::fs::read_dir(&demo).expect("there").flatten() {
            if file.path().extension().is_some_and(|ending| ending == "json" || ending == "jinja") {
                std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("copied");
            }
        }
        assert!(languages.of(&model(copy.path())).is_none(), "its files are not read");
        let clone = languages.clone();
        clone.follow(&copy.path().display().to_string()).expect("read");
        assert_eq!(languages.of(&model(copy.path())).expect("read").version, 1);
        assert!(languages.of(&model(&demo)).is_none());
        assert!(languages.follow("/nowhere").is_err());
        assert_eq!(languages.now().version, 1, "the earlier one stays");
    }

    #[test]
    fn one_text_side_can_stand_for_every_model() {
        let languages = Languages::from(Arc::new(paceline_text::samples::language()));
        let model = ModelInfo { path: "/models/a".into(), ..Default::default() };
        assert!(languages.of(&model).is_some());
    }
}
