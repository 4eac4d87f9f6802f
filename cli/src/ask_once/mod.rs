//! `paceline run`: one answer of a model, without a service that runs; without a question, at a
//! terminal, a conversation. A running service that serves this model is asked; else a private one is
//! started, asked and stopped.
//!
//! [`question`] reads the question · [`running`] finds the running service. This file has the order.

mod model;
mod question;
mod running;

use std::path::Path;

use paceline_client::answer::Answer;
use paceline_client::args::ServiceArgs;
use paceline_client::channel::Service;
use paceline_client::failure::RUN;
use paceline_client::own_service::settings::{Settings, directory};
use paceline_client::own_service::{self, OwnService};
use paceline_client::{Failure, Screen, program};
use paceline_launcher::fetch::fetch_missing;
use paceline_launcher::flags::Flags;
use paceline_process::{Loaded, Signals};

pub use model::with_model;

use crate::args::{ChatArgs, HowArgs, RunArgs, TalkArgs};
use crate::chat::converse;
use crate::generate::{Ask, chat};

/// Key of the drafters.
const DRAFTER: &str = "drafter.model";
/// Settings that the private service has of its own.
const OWN_KEYS: [&str; 6] = [
    "gateway.grpc",
    "gateway.http",
    "gateway.api_keys_file",
    "gateway.tls_cert",
    "gateway.tls_key",
    "supervisor.runtime_dir",
];

/// Runs the command.
///
/// # Errors
/// Why there is no whole answer, or no conversation. With `--json` it has been printed as an object
/// too.
pub async fn run(args: &RunArgs, screen: &mut Screen) -> Result<(), Failure> {
    if question::talks(args) {
        return talk(args, screen).await;
    }
    let outcome = answer(args, screen).await;
    let answer = program::show_object(outcome, args.json, screen)?;
    if args.json {
        let object = serde_json::to_string(&answer).expect("an answer is plain JSON");
        screen.text(&format!("{object}\n"))?;
    }
    Ok(())
}

async fn answer(args: &RunArgs, screen: &mut Screen) -> Result<Answer, Failure> {
    let settings = begin(args)?;
    let ask = Ask::Chat(chat(String::new(), question::messages(args)?, &how(args)));
    let work =
        async |service: Service, screen: &mut Screen| stream(&service, ask, args, screen).await;
    served(args, settings, false, screen, work).await
}

/// Talks until the input ends.
async fn talk(args: &RunArgs, screen: &mut Screen) -> Result<(), Failure> {
    let talk = TalkArgs { system: args.system.clone(), how: how(args), ..TalkArgs::default() };
    let chat = ChatArgs { talk, no_history: args.no_history, ..ChatArgs::default() };
    let work = async |service: Service, screen: &mut Screen| converse(service, &chat, screen).await;
    served(args, begin(args)?, true, screen, work).await
}

fn how(args: &RunArgs) -> HowArgs {
    let RunArgs { max_tokens, temperature, seed, .. } = *args;
    HowArgs { max_tokens, temperature, seed, ..HowArgs::default() }
}

/// The flags as settings, and the configuration with them.
fn begin(args: &RunArgs) -> Result<(Flags, Loaded), Failure> {
    let flags = flags(args)?;
    let loaded = flags.load(args.config.config.as_deref())?;
    Ok((flags, loaded))
}

/// Does the work on the running service, if it serves the model; else on a private one, which ends
/// with the work. `talks`: Ctrl-C is for the work.
async fn served<R>(
    args: &RunArgs,
    (flags, loaded): (Flags, Loaded),
    talks: bool,
    screen: &mut Screen,
    work: impl AsyncFnOnce(Service, &mut Screen) -> Result<R, Failure>,
) -> Result<R, Failure> {
    if args.drafter.is_none()
        && args.set.is_empty()
        && let Some(service) = running::serving(args).await?
    {
        if !args.json {
            screen.note(&format!(
                "asking the service at {}, which serves {}",
                service.address, args.model
            ));
        }
        return tokio::select! {
            outcome = work(service, screen) => outcome,
            // Dropping the request cancels it.
            _ = tokio::signal::ctrl_c(), if !talks => Err(Failure::interrupted()),
        };
    }
    fetch(&loaded, args, screen).await?;
    let settings = settings(args, flags)?;
    let awaits_drafter = args.drafter.is_some();
    let work = async |service: OwnService, screen: &mut Screen| {
        let show = |what: &str| passing(screen, args.json, what);
        match awaits_drafter {
            true => service.until_ready(show).await.map(drop),
            false => service.until_serving(show).await,
        }?;
        screen.clear();
        if talks {
            service.take_interrupts();
        }
        let address = Some(service.address().to_owned());
        let service = Service::find(&ServiceArgs { address, ..ServiceArgs::default() }).await?;
        work(service, screen).await
    };
    let outcome = own_service::run(RUN, &settings, screen, work).await;
    outcome.map(|(result, _seconds)| result)
}

/// The flags as settings.
///
/// # Errors
/// They contradict each other, or set what a private service has of its own.
fn flags(args: &RunArgs) -> Result<Flags, Failure> {
    let flags = Flags::of_models(&args.model, args.drafter.as_deref(), &args.set)?;
    match OWN_KEYS.iter().find(|key| flags.sets(key)) {
        None => Ok(flags),
        Some(key) => Err(Failure::usage(format!(
            "--set {key}: expected a setting of the models or of requests, because run's service has addresses and a directory of its own; start `paceline serve` to choose them"
        ))),
    }
}

/// Fetches the models that are not on this machine.
async fn fetch(loaded: &Loaded, args: &RunArgs, screen: &mut Screen) -> Result<(), Failure> {
    let mut signals = Signals::interactive()
        .map_err(|error| Failure::measuring(RUN, format!("cannot watch signals: {error}")))?;
    fetch_missing(loaded, args.offline, screen, async || signals.next().await).await.map(drop)
}

/// The settings of the private service. The drafter of the configuration goes with the target of the
/// configuration alone: another target has the default one.
fn settings(args: &RunArgs, mut flags: Flags) -> Result<Settings, Failure> {
    let model = directory("the model", &args.model)?;
    let file = args.config.config.as_deref();
    let configured = Loaded::find(file)?.config.model_dir().ok();
    let is_configured = configured.is_some_and(|dir| same(&dir, Path::new(&model)));
    if !is_configured && !flags.sets(DRAFTER) {
        flags.add("--drafter", DRAFTER, "auto");
    }
    let loaded = flags.load(file)?;
    let files = loaded.variables().into();
    let mut config = loaded.config;
    config.target.model = model;
    Ok(Settings { config, files, programs: None })
}

/// Whether two paths lead to one directory.
fn same(left: &Path, right: &Path) -> bool {
    left.canonicalize().ok().is_some_and(|left| right.canonicalize().ok() == Some(left))
}

/// Shows a step on the way to the answer.
fn passing(screen: &mut Screen, quiet: bool, what: &str) {
    if !quiet {
        screen.transient(what);
    }
}

/// Asks a service and shows the text as it comes.
async fn stream(
    service: &Service,
    ask: Ask,
    args: &RunArgs,
    screen: &mut Screen,
) -> Result<Answer, Failure> {
    let mut client = service.connect().await?;
    let mut stream = ask.send(&mut client, &service.address).await?;
    let outcome = {
        let mut line = OpenLine { screen: &mut *screen, text: String::new() };
        Answer::read(&mut stream, |message| match args.json {
            true => Ok(()),
            false => line.show(&message.text),
        })
        .await
    };
    let answer = outcome?;
    if args.verbose || screen.err_is_terminal() {
        screen.note(&answer.summary());
    }
    Ok(answer)
}

/// The line on which the last piece of text stands. It ends with this value: what is shown after an
/// answer, or after one that was interrupted, begins a line of its own.
struct OpenLine<'a> {
    screen: &'a mut Screen,
    /// The last piece.
    text: String,
}

impl OpenLine<'_> {
    fn show(&mut self, text: &str) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        text.clone_into(&mut self.text);
        self.screen.answer(text)
    }
}

impl Drop for OpenLine<'_> {
    fn drop(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.screen.line("");
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_process::config::Assignment;

    use super::*;

    #[test]
    fn what_the_private_service_has_of_its_own_cannot_be_set() {
        for key in OWN_KEYS {
            let set = vec![Assignment::new(key, "x")];
            let args = RunArgs { model: "D".into(), set, ..RunArgs::default() };
            let failure = flags(&args).expect_err("refused");
            assert!(failure.message.contains(&format!("--set {key}: expected")), "{failure}");
        }
    }

    #[test]
    fn the_drafter_of_the_configuration_goes_with_its_target_alone() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (file, other) = (dir.path().join("paceline.toml"), dir.path().join("other"));
        let target = dir.path().join("target");
        for model in [&target, &other] {
            std::fs::create_dir(model).expect("made");
        }
        let text = format!("target.model = {target:?}\ndrafter.model = \"/drafter\"\n");
        std::fs::write(&file, text).expect("written");
        let drafters = |model: &Path, drafter: Option<&str>| {
            let mut args = RunArgs { model: model.display().to_string(), ..RunArgs::default() };
            args.drafter = drafter.map(str::to_owned);
            args.config.config = Some(file.clone());
            let settings = settings(&args, flags(&args).expect("flags")).expect("settings");
            assert_eq!(settings.config.target.model, args.model);
            settings.config.drafter.model.to_string()
        };
        assert_eq!(drafters(&target, None), "/drafter");
        assert_eq!(drafters(&other, None), "auto");
        assert_eq!(drafters(&other, Some("target")), "target");
    }

    #[test]
    fn the_line_of_an_interrupted_answer_ends() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut screen = Screen::over(file.reopen().expect("opened"), std::io::sink());
        for pieces in [["half a ", "line"], ["a line\n", ""]] {
            let mut line = OpenLine { screen: &mut screen, text: String::new() };
            pieces.iter().for_each(|piece| line.show(piece).expect("open"));
        }
        drop(OpenLine { screen: &mut screen, text: String::new() });
        let shown = std::fs::read_to_string(file.path()).expect("readable");
        assert_eq!(shown, "half a line\na line\n");
    }
}
