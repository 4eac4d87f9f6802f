//! Settings that operators read and change (`Operations`). What needs no restart is applied to the
//! running service; everything is kept in the file of kept settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};

use paceline_process::config::{
    Applies, Assignment, KeptChange, Setting as Loose, Source, changes_at_once,
};
use paceline_process::runtime_dir::WorkerRecord;
use paceline_process::{Config, ConfigError, Loaded, RuntimeDir};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::{
    ChangeSettingsRequest, ChangeSettingsResponse, PolicySetting, ProcessState, ProcessStatus,
    Setting, SettingChange, SettingUse, ShowSettingsResponse, StatusResponse,
};
use paceline_supervisor_core::drafter::{DrafterOrder, DrafterPlan};
use paceline_supervisor_core::tuning::Tuning;
use paceline_supervisor_core::{WorkerId, WorkerSlot};
use paceline_vocabulary::chain;
use tokio::sync::Mutex;
use tonic::Status;

use crate::config;
use crate::handle::ActorHandle;

/// Most changes of one request.
const MOST_CHANGES: usize = 256;
/// Source of a routing setting that `paceline policy set` changed until the supervisor ends.
const POLICY_SET: &str = "policy set";

/// Reads and changes the settings of the service.
#[derive(Clone, Debug)]
pub struct SettingsDesk {
    /// `--config` of this process.
    flag: Option<PathBuf>,
    /// Where other processes note what they were started with.
    dir: RuntimeDir,
    /// Changes take turns: each is in force before the next one begins, which may take a drafter's
    /// load. Nobody who only reads waits for that.
    turn: Arc<Mutex<()>>,
    /// Value by key of the settings that this process uses.
    used: Arc<std::sync::Mutex<UsedValues>>,
}

/// Value by key of settings in use.
type UsedValues = BTreeMap<String, String>;

impl SettingsDesk {
    /// Settings of the configuration that this flag names, or that is found without one. The
    /// supervisor was started with `used`.
    pub fn new(flag: Option<PathBuf>, dir: RuntimeDir, used: &[Loose]) -> Self {
        let used = used.iter().map(|one| (one.key.clone(), one.value.clone())).collect();
        Self { flag, dir, turn: Arc::default(), used: Arc::new(std::sync::Mutex::new(used)) }
    }

    /// The configuration as it is now.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn loaded(&self) -> Result<Loaded, Status> {
        let flag = self.flag.clone();
        blocking(move || Loaded::find(flag.as_deref())).await
    }

    /// All settings, each with what it waits for. A routing setting that an operator changed until the
    /// supervisor ends is shown as it is in force.
    ///
    /// # Errors
    /// The configuration cannot be read, or the service is about to end.
    pub async fn show(&self, handle: &ActorHandle) -> Result<ShowSettingsResponse, Status> {
        let mut shown = self.loaded().await?.shown();
        let status = handle.status().await?;
        let policy = status.routing.unwrap_or_default().policy;
        let (desk, drafter) = (self.clone(), status.drafter.unwrap_or_default());
        let others = blocking(move || Ok(desk.used_by_others(&drafter))).await?;
        let own = self.used().clone();
        for setting in &mut shown.settings {
            let is_other =
                |one: &&PolicySetting| one.key == setting.key && one.value != setting.value;
            let policy = policy.iter().find(is_other);
            // What the file had when this process read it: then it is the file that changed.
            match policy.filter(|policy| own.get(&setting.key) != Some(&policy.value)) {
                Some(policy) => {
                    setting.value.clone_from(&policy.value);
                    POLICY_SET.clone_into(&mut setting.source);
                }
                None => setting.set_waits(others.waits(&own, setting)),
            }
        }
        Ok(shown)
    }

    /// What the processes beside this one were started with.
    fn used_by_others(&self, drafter: &ProcessStatus) -> UsedByOthers {
        let of = |process: &str| self.dir.used_settings(process).unwrap_or_default();
        UsedByOthers {
            gateway: of("gateway"),
            target: of(WorkerId::Target.name()),
            drafter: self.name_of(drafter).map(of).unwrap_or_default(),
        }
    }

    fn used(&self) -> MutexGuard<'_, UsedValues> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name under which this drafter runs: two may, while one takes the other's place.
    fn name_of(&self, drafter: &ProcessStatus) -> Option<&'static str> {
        let names = WorkerSlot::ALL.iter().map(|slot| WorkerId::Drafter(*slot).name());
        let is_it = |record: WorkerRecord| record.pid == drafter.pid;
        names.into_iter().find(|name| self.dir.record(name).is_some_and(is_it))
    }

    /// Keeps these changes and applies those that need no restart.
    ///
    /// # Errors
    /// A key or a value is refused, or the file cannot be written. Then nothing is changed.
    pub async fn change(
        self,
        request: ChangeSettingsRequest,
        handle: ActorHandle,
    ) -> Result<ChangeSettingsResponse, Status> {
        let changes = changes(request)?;
        let _turn = self.turn.lock().await;
        let (flag, kept) = (self.flag.clone(), changes.clone());
        let (before, after) = blocking(move || {
            let before = Loaded::find(flag.as_deref())?;
            Loaded::keep(flag.as_deref(), &kept).map(|after| (before, after))
        })
        .await?;
        for change in &changes {
            let setting = setting(&after, change.key());
            tracing::info!(
                key = setting.key,
                value = setting.value,
                source = setting.source,
                "setting kept"
            );
        }
        let trouble = self.apply(&changes, &before.config, &after.config, &handle).await?;
        // With a setting of these sections the others of the section are applied as well.
        let is_used = |key: &str| {
            let is_changed = |one: &KeptChange| match key.split_once('.') {
                Some((section @ ("limits" | "drafter"), _)) => changes_at_once(section, one.key()),
                _ => one.key() == key,
            };
            Applies::of(key) == Applies::AtOnce
                && (trouble.is_empty() || !key.starts_with("drafter."))
                && changes.iter().any(is_changed)
        };
        for now in after.settings().iter().filter(|one| is_used(&one.key)) {
            self.used().insert(now.key.clone(), now.value.clone());
        }
        let outcome = |change: &KeptChange| {
            let (key, was) = (change.key(), setting(&before, change.key()));
            let setting = setting(&after, key);
            let is_policy = changes_at_once("routing", key);
            let unchanged = was.value == setting.value && !is_policy;
            let trouble = if key.starts_with("drafter.") { trouble.clone() } else { String::new() };
            let used = if unchanged { SettingUse::Unchanged } else { used(Applies::of(key)) };
            SettingChange { setting: Some(setting), r#use: used.into(), trouble }
        };
        let kept_file = after.kept_file.as_ref().map(|path| path.display().to_string());
        Ok(ChangeSettingsResponse {
            changes: changes.iter().map(outcome).collect(),
            kept_file: kept_file.unwrap_or_default(),
        })
    }

    /// Applies what needs no restart. Returns why the drafter could not be changed; empty if it was.
    async fn apply(
        &self,
        changes: &[KeptChange],
        before: &Config,
        after: &Config,
        handle: &ActorHandle,
    ) -> Result<String, Status> {
        let changed = |key: &str| changes.iter().any(|change| change.key() == key);
        let changed_in =
            |section| changes.iter().any(|change| changes_at_once(section, change.key()));
        let settings = config::settings(after);
        for change in settings.policy.settings().into_iter().filter(|one| changed(one.key())) {
            handle.set_policy(change).await?;
        }
        if changed_in("limits") {
            handle.tune(Tuning::Admission(settings.admission)).await?;
        }
        if changed("drain.notice_s") {
            handle.tune(Tuning::Notice { ms: settings.notice_ms }).await?;
        }
        if !changed_in("drafter") {
            return Ok(String::new());
        }
        let status = handle.status().await?;
        let plan = plan(after, &status);
        let switch = if before.drafter.model == after.drafter.model {
            None
        } else {
            switch(&plan, &status.drafter.unwrap_or_default())
        };
        let switched = match switch {
            Some(order) => handle.order_drafter(order).await.map(drop),
            None => Ok(()),
        };
        match switched {
            Ok(()) => handle.tune(Tuning::Drafters(plan)).await.map(|()| String::new()),
            Err(refused) => Ok(format!(
                "the drafter that runs goes on: {}; the setting is in force when the supervisor is started again",
                refused.message()
            )),
        }
    }
}

/// The changes of a request.
fn changes(request: ChangeSettingsRequest) -> Result<Vec<KeptChange>, Status> {
    let ChangeSettingsRequest { set, unset } = request;
    let found = set.len().saturating_add(unset.len());
    if !(1..=MOST_CHANGES).contains(&found) {
        let message = format!("expected 1 to {MOST_CHANGES} settings, found {found}");
        return Err(Reason::InvalidArgument.field("set", message));
    }
    let set = set.into_iter().map(|set| KeptChange::Set(Assignment::new(&set.key, set.value)));
    Ok(set.chain(unset.into_iter().map(KeptChange::Unset)).collect())
}

/// The drafters that the configuration names with the model that is served now.
fn plan(after: &Config, status: &StatusResponse) -> DrafterPlan {
    let served = status.target.as_ref().map(|target| target.model.as_str()).unwrap_or_default();
    let is_configured =
        after.model_dir().is_ok_and(|dir| served.is_empty() || dir.display().to_string() == served);
    let mut config = if is_configured { after.clone() } else { after.with_target(served) };
    // A name that cannot be resolved stays as it is: the drafter's state then reports it.
    let _ = config.resolve_models();
    config::plan(&config)
}

/// The order that makes a running drafter the first of the list; `None` if none runs.
fn switch(plan: &DrafterPlan, drafter: &ProcessStatus) -> Option<DrafterOrder> {
    match plan.models.first() {
        _ if !runs(drafter) => None,
        None => Some(DrafterOrder::Stop),
        Some(model) if *model == drafter.model => None,
        Some(model) => Some(DrafterOrder::Swap { model: model.clone() }),
    }
}

fn runs(process: &ProcessStatus) -> bool {
    !matches!(
        process.state(),
        ProcessState::Absent | ProcessState::Stopped | ProcessState::Unspecified
    )
}

/// The settings that the processes beside this one were started with; empty where nobody knows.
#[derive(Debug)]
struct UsedByOthers {
    gateway: UsedValues,
    target: UsedValues,
    drafter: UsedValues,
}

impl UsedByOthers {
    /// What a setting waits for. The supervisor uses `own`.
    fn waits(&self, own: &UsedValues, setting: &Setting) -> SettingUse {
        let is_other =
            |used: &&UsedValues| used.get(&setting.key).is_some_and(|it| *it != setting.value);
        let applies = Applies::of(&setting.key);
        let (readers, waits) = match applies {
            // A change of the file alone: `config set` would be in force.
            Applies::AtOnce => (vec![own], SettingUse::Supervisor),
            Applies::Supervisor => (vec![own], SettingUse::Supervisor),
            Applies::Service => (vec![own, &self.gateway], SettingUse::Service),
            Applies::Gateway => (vec![&self.gateway], SettingUse::Gateway),
            Applies::Target | Applies::OtherTarget => (vec![&self.target], used(applies)),
            Applies::Drafter => (vec![&self.drafter], SettingUse::Drafter),
        };
        if readers.iter().any(is_other) { waits } else { SettingUse::Unspecified }
    }
}

fn used(applies: Applies) -> SettingUse {
    match applies {
        Applies::AtOnce => SettingUse::InForce,
        Applies::Gateway => SettingUse::Gateway,
        Applies::Supervisor => SettingUse::Supervisor,
        Applies::Target => SettingUse::Target,
        Applies::OtherTarget => SettingUse::OtherTarget,
        Applies::Drafter => SettingUse::Drafter,
        Applies::Service => SettingUse::Service,
    }
}

/// A setting as a message. A key that is not set any more has no value.
fn setting(loaded: &Loaded, key: &str) -> Setting {
    let found = loaded.settings().iter().find(|setting| setting.key == key);
    let gone = Loose { key: key.to_owned(), value: String::new(), source: Source::Default };
    found.unwrap_or(&gone).into()
}

/// Runs what reads and writes files on a thread for that.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ConfigError> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|_| Status::internal("reading the settings failed"))?;
    done.map_err(|error| Reason::InvalidArgument.status(chain(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle;
    use crate::mailbox::Mail;

    fn drafter(state: ProcessState, model: &str) -> ProcessStatus {
        ProcessStatus { state: state.into(), model: model.into(), ..Default::default() }
    }

    #[test]
    fn a_running_drafter_is_swapped_stopped_or_left() {
        let check = |models: &[&str], drafter: ProcessStatus, expected: Option<DrafterOrder>| {
            let models = models.iter().map(|model| (*model).to_owned()).collect();
            let plan = DrafterPlan { models, ..DrafterPlan::default() };
            assert_eq!(switch(&plan, &drafter), expected);
        };
        let ready = || drafter(ProcessState::Ready, "/a");
        check(&["/b", "/a"], ready(), Some(DrafterOrder::Swap { model: "/b".into() }));
        check(&["/a", "/b"], ready(), None);
        check(&[], ready(), Some(DrafterOrder::Stop));
        check(&["/b"], drafter(ProcessState::Stopped, "/a"), None);
        check(&["/b"], drafter(ProcessState::Absent, ""), None);
        let failed = drafter(ProcessState::Failed, "/a");
        check(&["/b"], failed, Some(DrafterOrder::Swap { model: "/b".into() }));
    }

    /// A change may take as long as the load of a drafter.
    #[tokio::test]
    async fn settings_are_shown_while_a_change_is_not_in_force_yet() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mut config = Config::default();
        config.supervisor.runtime_dir = temp.path().display().to_string();
        let dir = RuntimeDir::locate(&config).expect("a short path");
        let (handle, mut mailbox, _kept) = handle::played(&dir);
        let desk = SettingsDesk::new(Some("/dev/null".into()), dir, &[]);
        let _turn = desk.turn.lock().await;
        let answer = async {
            let Some(Mail::Status { reply }) = mailbox.recv().await else { panic!("it asks") };
            reply.send(StatusResponse::default()).expect("awaited");
        };
        let (shown, ()) = tokio::join!(desk.show(&handle), answer);
        assert!(shown.expect("shown").settings.iter().any(|one| one.key == "limits.queue"));
    }

    #[test]
    fn a_setting_waits_for_the_process_that_uses_another_value() {
        let used = |value: &str| {
            let keys = ["gateway.thinking_budget", "target.device", "log.level", "limits.queue"];
            keys.iter().map(|key| ((*key).to_owned(), value.to_owned())).collect::<UsedValues>()
        };
        let check = |key: &str, [own, gateway, target]: [&str; 3], expected: SettingUse| {
            let others = UsedByOthers {
                gateway: used(gateway),
                target: used(target),
                drafter: UsedValues::new(),
            };
            let setting = Setting { key: key.into(), value: "new".into(), ..Setting::default() };
            assert_eq!(others.waits(&used(own), &setting), expected, "{key}");
        };
        let in_force = SettingUse::Unspecified;
        check("gateway.thinking_budget", ["old", "old", "new"], SettingUse::Gateway);
        check("gateway.thinking_budget", ["old", "new", "old"], in_force);
        check("target.device", ["new", "new", "old"], SettingUse::Target);
        check("log.level", ["new", "old", "new"], SettingUse::Service);
        check("log.level", ["new", "new", "old"], in_force);
        check("limits.queue", ["old", "new", "new"], SettingUse::Supervisor);
        check("drafter.kind", ["old", "old", "old"], in_force);
    }

    #[test]
    fn a_request_without_changes_or_with_too_many_is_refused() {
        assert!(changes(ChangeSettingsRequest::default()).is_err());
        let unset = vec!["limits.queue".to_owned(); MOST_CHANGES + 1];
        assert!(changes(ChangeSettingsRequest { unset, ..Default::default() }).is_err());
    }
}
