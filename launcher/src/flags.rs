//! Flags as settings: each flag of `serve` and `run` is an assignment that the loader of the
//! configuration reads, so that a setting has one form and one check.

use std::net::SocketAddr;
use std::path::Path;

use paceline_checkpoint::ModelRef;
use paceline_client::Failure;
use paceline_process::config::{Assignment, ConfigError, DrafterModels};
use paceline_process::{Loaded, chain};
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde::de::value::StrDeserializer;

use crate::args::ServeArgs;

/// The word for no drafter and for no HTTP service.
const OFF: &str = "off";
/// The address on which Ollama listens.
const OLLAMA_ADDRESS: &str = "127.0.0.1:11434";
/// Flag of any setting.
const SET: &str = "--set";
/// Host of the HTTP service if the configuration has none and a port is named.
const HTTP_HOST: &str = "127.0.0.1";

/// Settings of flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags(Vec<Flag>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Flag {
    /// The flag as it is written.
    name: &'static str,
    setting: Assignment,
}

/// Why flags are refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFlags {
    /// The flags contradict each other.
    #[error("{flag} and --set {key}: expected one of them, found both")]
    Conflict {
        /// The flag with a name of its own.
        flag: &'static str,
        /// Key that both set.
        key: String,
    },
    /// The configuration refuses a value, or cannot be read.
    #[error("{0}")]
    Config(String),
}

impl From<BadFlags> for Failure {
    fn from(error: BadFlags) -> Self {
        Self::usage(error.to_string())
    }
}

impl Flags {
    /// The settings of the flags of `serve`.
    ///
    /// # Errors
    /// A flag and a `--set` of its key; with `--port` the configuration that names the host.
    pub fn of_serve(args: &ServeArgs) -> Result<Self, BadFlags> {
        let mut flags = Self::default();
        let model = args.model.as_deref().or(args.positional_model.as_deref());
        flags.add_models(model, args.drafter.as_deref());
        if let Some(http) = &args.http {
            let address = if http == OFF { "" } else { http };
            flags.add("--http", "gateway.http", address);
        }
        if args.ollama {
            flags.add("--ollama", "gateway.ollama", OLLAMA_ADDRESS);
        }
        if let Some(threads) = &args.threads {
            flags.add("--threads", "target.threads", threads);
            flags.add("--threads", "drafter.threads", threads);
        }
        if let Some(context) = &args.context {
            flags.add("--context", "limits.context_tokens", context);
        }
        if let Some(port) = args.port {
            let http = flags.load(args.config.config.as_deref())?.config.gateway.http;
            flags.add("--port", "gateway.http", with_port(&http, port));
        }
        flags.add_set(&args.set)?;
        Ok(flags)
    }

    /// The settings of the flags `--model`, `--drafter` and `--set`.
    ///
    /// # Errors
    /// A flag and a `--set` of its key.
    pub fn of_models(
        model: &str,
        drafter: Option<&str>,
        set: &[Assignment],
    ) -> Result<Self, BadFlags> {
        let mut flags = Self::default();
        flags.add_models(Some(model), drafter);
        flags.add_set(set)?;
        Ok(flags)
    }

    /// Adds the setting of a flag.
    pub fn add(&mut self, name: &'static str, key: &str, value: impl Into<String>) {
        self.0.push(Flag { name, setting: Assignment::new(key, value) });
    }

    /// Whether a flag sets this key.
    pub fn sets(&self, key: &str) -> bool {
        self.0.iter().any(|flag| flag.setting.key == key)
    }

    /// The configuration with these settings over all others.
    ///
    /// # Errors
    /// A value or a key is refused, or the configuration cannot be read.
    pub fn load(&self, config: Option<&Path>) -> Result<Loaded, BadFlags> {
        let settings: Vec<Assignment> = self.0.iter().map(|flag| flag.setting.clone()).collect();
        Loaded::find_with_flags(config, &settings).map_err(|error| self.named(&error))
    }

    fn add_models(&mut self, model: Option<&str>, drafter: Option<&str>) {
        if let Some(model) = model {
            self.add("--model", "target.model", absolute(model));
        }
        if let Some(drafter) = drafter {
            let value = if drafter == OFF { String::new() } else { drafters(drafter) };
            self.add("--drafter", "drafter.model", value);
        }
    }

    fn add_set(&mut self, set: &[Assignment]) -> Result<(), BadFlags> {
        let key = |one: &Assignment| one.key.clone();
        for setting in set {
            if let Some(flag) = self.0.iter().find(|flag| flag.setting.key == setting.key) {
                return Err(BadFlags::Conflict { flag: flag.name, key: key(setting) });
            }
        }
        self.0.extend(set.iter().map(|setting| Flag { name: SET, setting: setting.clone() }));
        Ok(())
    }

    /// The error, with the flag that set the value.
    fn named(&self, error: &ConfigError) -> BadFlags {
        let key = match error {
            ConfigError::UnknownKey { key, .. } | ConfigError::Value { key, .. } => Some(key),
            _ => None,
        };
        let flag = self.0.iter().find(|flag| Some(&flag.setting.key) == key);
        let message = chain(error);
        BadFlags::Config(match flag {
            Some(flag) => format!("{}: {message}", flag.name),
            None => message,
        })
    }
}

/// The name of a model as it means the same in every directory: a relative directory becomes
/// absolute, other names stay.
fn absolute(model: &str) -> String {
    let path = match ModelRef::parse(model) {
        ModelRef::Directory(path) => path,
        ModelRef::DirectoryIfThere(path) if path.is_dir() => path,
        _ => return model.to_owned(),
    };
    // Without a working directory the name stays, and the loader refuses it.
    let path =
        std::path::absolute(path).ok().and_then(|path| path.into_os_string().into_string().ok());
    path.unwrap_or_else(|| model.to_owned())
}

/// A list of drafters with absolute directories, in the form of the environment.
fn drafters(text: &str) -> String {
    let text: StrDeserializer<'_, serde::de::value::Error> = text.into_deserializer();
    // Any text is a list; the loader refuses names that are none.
    let names = DrafterModels::deserialize(text).unwrap_or_default();
    let escaped = |name: &String| absolute(name).replace('\\', r"\\").replace(',', r"\,");
    names.names().iter().map(escaped).collect::<Vec<_>>().join(",")
}

/// The address of the HTTP service with another port.
fn with_port(http: &str, port: u16) -> String {
    match http.parse::<SocketAddr>() {
        Ok(mut address) => {
            address.set_port(port);
            address.to_string()
        }
        // The configuration has no HTTP service.
        Err(_) => format!("{HTTP_HOST}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> ServeArgs {
        let mut args = ServeArgs::default();
        args.config.config = Some("/dev/null".into());
        args
    }

    fn settings(args: &ServeArgs) -> Vec<(&'static str, String)> {
        let flags = Flags::of_serve(args).expect("accepted").0;
        let one = |flag: Flag| (flag.name, format!("{}={}", flag.setting.key, flag.setting.value));
        flags.into_iter().map(one).collect()
    }

    fn one(name: &'static str, text: &str) -> (&'static str, String) {
        (name, text.to_owned())
    }

    #[test]
    fn each_flag_is_a_setting_of_the_configuration() {
        assert_eq!(settings(&none()), []);
        let args = ServeArgs {
            model: Some("org/name".into()),
            drafter: Some("lookup, a/b".into()),
            http: Some("127.0.0.1:9".into()),
            threads: Some("2".into()),
            context: Some("512".into()),
            set: vec![Assignment::new("routing.force", "plain")],
            ..none()
        };
        let expected = [
            one("--model", "target.model=org/name"),
            one("--drafter", "drafter.model=lookup,a/b"),
            one("--http", "gateway.http=127.0.0.1:9"),
            one("--threads", "target.threads=2"),
            one("--threads", "drafter.threads=2"),
            one("--context", "limits.context_tokens=512"),
            one("--set", "routing.force=plain"),
        ];
        assert_eq!(settings(&args), expected);
        let loaded = Flags::of_serve(&args).expect("accepted").load(Some("/dev/null".as_ref()));
        let loaded = loaded.expect("a configuration");
        assert_eq!(loaded.config.limits.context_tokens.or(0), 512);
        assert_eq!(loaded.config.drafter.model.names(), ["lookup", "a/b"]);
        assert_eq!(loaded.source("routing.force").word(), "flag");
        assert_eq!(loaded.source("limits.queue").word(), "default");
    }

    #[test]
    fn off_is_no_drafter_and_no_http_service() {
        let off = Some("off".to_owned());
        let args = ServeArgs { drafter: off.clone(), http: off, ..none() };
        let expected = [one("--drafter", "drafter.model="), one("--http", "gateway.http=")];
        assert_eq!(settings(&args), expected);
    }

    #[test]
    fn a_relative_directory_is_made_absolute_and_a_name_stays() {
        let here = std::env::current_dir().expect("there").display().to_string();
        for (written, expected) in [
            ("./x", format!("{here}/x")),
            ("/x", "/x".to_owned()),
            ("src", format!("{here}/src")),
            ("no-such-directory", "no-such-directory".to_owned()),
            ("org/name", "org/name".to_owned()),
            ("smollm2", "smollm2".to_owned()),
            ("~/x", "~/x".to_owned()),
            ("", String::new()),
        ] {
            assert_eq!(absolute(written), expected, "{written:?}");
        }
    }

    #[test]
    fn a_comma_in_the_name_of_a_drafter_separates_none() {
        assert_eq!(drafters(r"/a\,b, lookup,/c\\d"), r"/a\,b,lookup,/c\\d");
        assert_eq!(drafters(""), "");
    }

    #[test]
    fn a_port_keeps_the_host_of_the_configuration() {
        assert_eq!(
            settings(&ServeArgs { port: Some(9), ..none() }),
            [one("--port", "gateway.http=127.0.0.1:9")]
        );
        for (http, expected) in
            [("[::1]:8061", "[::1]:9"), ("", "127.0.0.1:9"), ("0.0.0.0:1", "0.0.0.0:9")]
        {
            assert_eq!(with_port(http, 9), expected, "{http:?}");
        }
    }

    #[test]
    fn a_flag_and_a_set_of_its_key_are_refused() {
        for (args, flag, key) in [
            (ServeArgs { model: Some("a/b".into()), ..none() }, "--model", "target.model"),
            (ServeArgs { port: Some(9), ..none() }, "--port", "gateway.http"),
            (ServeArgs { threads: Some("1".into()), ..none() }, "--threads", "drafter.threads"),
        ] {
            let args = ServeArgs { set: vec![Assignment::new(key, "1")], ..args };
            let found = Flags::of_serve(&args).expect_err("refused");
            assert_eq!(found, BadFlags::Conflict { flag, key: key.into() });
            assert!(found.to_string().contains("expected one of them"), "{found}");
        }
        let set = ["1", "2"].map(|value| Assignment::new("limits.queue", value)).to_vec();
        let flags = Flags::of_serve(&ServeArgs { set, ..none() }).expect("the later one wins");
        let loaded = flags.load(Some("/dev/null".as_ref())).expect("a configuration");
        assert_eq!(loaded.config.limits.queue, 2);
    }

    #[test]
    fn a_refused_value_names_its_flag() {
        let set =
            |key: &str, value: &str| ServeArgs { set: vec![Assignment::new(key, value)], ..none() };
        let threads = ServeArgs { threads: Some("many".into()), ..none() };
        let http = ServeArgs { http: Some("nowhere".into()), ..none() };
        for (args, words) in [
            (&threads, ["--threads: ", ".threads", "many"]),
            (&http, ["--http: ", "gateway.http", "nowhere"]),
            (&set("limits.queue", "many"), ["--set: ", "limits.queue", "many"]),
            (&set("limits.queu", "1"), ["--set: ", "limits.queu", "did you mean limits.queue?"]),
            (&set("target.max_sequences", "0"), ["--set: ", "target.max_sequences", "1 to 128"]),
        ] {
            let flags = Flags::of_serve(args).expect("no conflict");
            let found = flags.load(Some("/dev/null".as_ref())).expect_err("refused").to_string();
            for word in words {
                assert!(found.contains(word), "{word:?} in {found}");
            }
        }
    }
}
