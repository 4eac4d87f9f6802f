//! Arguments of `paceline serve` and `paceline service`.

mod serve;
mod service;

pub use serve::ServeArgs;
pub use service::{
    ManagerName, ServiceCommand, ServiceInstall, ServiceLogs, ServiceScope, ServiceStart,
    ServiceUninstall,
};
