//! The running service of the configuration, if it serves the model that is asked.

use std::path::Path;

use paceline_client::Failure;
use paceline_client::args::ServiceArgs;
use paceline_client::channel::Service;
use paceline_client::own_service::settings::directory;
use paceline_launcher::serve::progress::ready;
use paceline_proto::convert::service::ServiceStatus;

use super::same;
use crate::args::RunArgs;
use crate::status::ask;

/// The service that runs in the configuration's runtime directory and serves this model now.
///
/// # Errors
/// The API key of the environment, or the service's certificates, cannot be used.
pub(super) async fn serving(args: &RunArgs) -> Result<Option<Service>, Failure> {
    // Without a service, or with one that does not answer, a private one is started.
    let Ok(status) = ask(args.config.config.as_deref()).await else { return Ok(None) };
    // A model that is not on this machine is served by none.
    let Ok(model) = directory("the model", &args.model) else { return Ok(None) };
    if !serves(&status, Path::new(&model)) {
        return Ok(None);
    }
    let service = ServiceArgs { config: args.config.clone(), ..ServiceArgs::default() };
    Service::find(&service).await.map(Some)
}

/// Whether a request for the model in this directory would be served now.
fn serves(status: &ServiceStatus, model: &Path) -> bool {
    let served = status.target.model.as_ref();
    ready(status) && served.is_some_and(|served| same(Path::new(served), model))
}

#[cfg(test)]
mod tests {
    use paceline_proto::v1::{ProcessState, ProcessStatus, StatusResponse};

    use super::*;

    #[test]
    fn a_service_serves_the_model_of_its_directory_once_it_is_ready() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (model, link) = (dir.path().join("m"), dir.path().join("link"));
        std::fs::create_dir(&model).expect("made");
        std::os::unix::fs::symlink("m", &link).expect("linked");
        let process = |state: ProcessState, model: &Path| {
            let model = model.display().to_string();
            Some(ProcessStatus { state: state.into(), model, ..ProcessStatus::default() })
        };
        let status = |state, served: &Path| {
            ServiceStatus::from(StatusResponse {
                gateway: process(ProcessState::Ready, Path::new("")),
                target: process(state, served),
                ..StatusResponse::default()
            })
        };
        assert!(serves(&status(ProcessState::Ready, &model), &link), "the same directory");
        assert!(!serves(&status(ProcessState::Ready, dir.path()), &model));
        assert!(!serves(&status(ProcessState::Loading, &model), &model));
        assert!(!serves(&status(ProcessState::Ready, Path::new("")), Path::new("")));
    }
}
