//! Service accounts of Kubernetes whose pods forward for a group of neighbours.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::kube_name::KubeName;
use crate::neighbour::{Group, GroupError};

/// A service account, and the group whose agents its pods are. Its text form is `NAMESPACE/NAME=GROUP`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentAccount {
    pub account: KubeName,
    pub group: Group,
}

/// Why a text is no [`AgentAccount`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AgentAccountError {
    #[error("use NAMESPACE/NAME=GROUP, as tollway-fabric/racks=racks")]
    Form,
    #[error(transparent)]
    Group(#[from] GroupError),
}

impl fmt::Display for AgentAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.account, self.group)
    }
}

impl FromStr for AgentAccount {
    type Err = AgentAccountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (account, group) = text.split_once('=').ok_or(AgentAccountError::Form)?;
        let account = account.parse().map_err(|_| AgentAccountError::Form)?;
        Ok(Self { account, group: Group::new(group)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_its_group_behind_it() {
        let text = "tollway-fabric/agents=racks";
        let found: AgentAccount = text.parse().unwrap();
        assert_eq!(found.account.to_string(), "tollway-fabric/agents");
        assert_eq!(found.group, Group::new("Racks").unwrap());
        assert_eq!(found.to_string(), text);
        for text in ["", "a/b", "a=b", "/b=c", "a/b/c=d"] {
            assert_eq!(text.parse::<AgentAccount>(), Err(AgentAccountError::Form), "{text}");
        }
        for text in ["a/b=", "a/b=two words", "a/b=c=d"] {
            let error = text.parse::<AgentAccount>().unwrap_err();
            assert!(matches!(error, AgentAccountError::Group(_)), "{text}: {error}");
        }
    }
}
