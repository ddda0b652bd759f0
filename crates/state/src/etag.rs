//! What the changes of a transaction require and do, one step for each key.

use crate::error::StateError;
use crate::limits::TRANSACTION_OPS;
use crate::model::{Condition, Consistency, Op, Set, Transaction};

/// What happens to one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step<'a> {
    pub key: &'a str,
    /// The condition on the entry before the transaction.
    pub condition: Condition<'a>,
    /// What is put there; `None` removes the key.
    pub put: Option<&'a Set>,
}

impl<'a> Step<'a> {
    fn of(op: &'a Op) -> Self {
        let put = match op {
            Op::Set(set) => Some(set),
            Op::Delete(_) => None,
        };
        Self { key: op.key(), condition: op.condition(), put }
    }

    /// A later change of the same key: it wins, and both conditions must hold.
    fn followed_by(self, later: Self) -> Option<Self> {
        let condition = match (self.condition, later.condition) {
            (one, Condition::None) => one,
            (Condition::None, other) => other,
            (one, other) if one == other => one,
            _ => return None,
        };
        Some(Self { condition, ..later })
    }
}

/// The steps of a transaction in the order of their keys' first mention, each key once.
///
/// # Errors
/// When there are too many, two conditions exclude each other, or a step touches the fence.
pub fn plan_steps(transaction: &Transaction) -> Result<Vec<Step<'_>>, StateError> {
    let ops = &transaction.ops;
    if ops.len() > TRANSACTION_OPS {
        return Err(StateError::TooManyOps { count: ops.len(), limit: TRANSACTION_OPS });
    }
    let mut steps: Vec<Step<'_>> = Vec::with_capacity(ops.len());
    let mut places = std::collections::HashMap::with_capacity(ops.len());
    for op in ops {
        let step = Step::of(op);
        if transaction.fence.as_ref().is_some_and(|fence| fence.key == step.key) {
            return Err(StateError::TouchesFence { key: step.key.to_owned() });
        }
        match places.get(step.key) {
            None => {
                places.insert(step.key, steps.len());
                steps.push(step);
            }
            Some(&place) => {
                let both = steps[place].followed_by(step);
                steps[place] = both.ok_or_else(|| StateError::mismatch(step.key, None))?;
            }
        }
    }
    Ok(steps)
}

/// The strongest consistency that a change of the transaction requests.
pub(crate) fn consistency(transaction: &Transaction) -> Consistency {
    let strong = transaction.ops.iter().any(|op| op.consistency() == Consistency::Strong);
    if strong { Consistency::Strong } else { Consistency::Eventual }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::model::{Concurrency, Delete, Fence, Value};

    fn set(key: &str, etag: Option<&str>) -> Op {
        let etag = etag.map(str::to_owned);
        Op::Set(Set { etag, ..Set::new(key, Value::Bytes(Bytes::new())) })
    }

    fn first(key: &str) -> Op {
        let set = Set::new(key, Value::Bytes(Bytes::new()));
        Op::Set(Set { concurrency: Concurrency::FirstWrite, ..set })
    }

    fn planned(ops: Vec<Op>) -> Result<String, String> {
        let transaction = Transaction { ops, fence: None };
        let steps = plan_steps(&transaction).map_err(|error| error.to_string())?;
        let shown = steps.iter().map(|step| {
            let condition = match step.condition {
                Condition::None => "",
                Condition::Absent => "!",
                Condition::Etag(etag) => etag,
            };
            format!("{}{}{condition}", if step.put.is_some() { '+' } else { '-' }, step.key)
        });
        Ok(shown.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn each_key_has_one_step_and_the_last_change_wins() {
        let delete = |key: &str| Op::Delete(Delete::new(key));
        let check = |ops, steps: &str| assert_eq!(planned(ops).unwrap(), steps);
        check(vec![set("a", None), delete("b"), set("c", Some("1"))], "+a -b +c1");
        check(vec![set("a", Some("1")), delete("a")], "-a1");
        check(vec![delete("a"), set("a", Some("1"))], "+a1");
        check(vec![first("a"), set("a", None), delete("a")], "-a!");
        check(vec![set("a", Some("1")), set("a", Some("1"))], "+a1");
        check(vec![], "");
    }

    #[test]
    fn conditions_that_exclude_each_other_are_refused() {
        for ops in
            [vec![set("a", Some("1")), set("a", Some("2"))], vec![first("a"), set("a", Some("1"))]]
        {
            assert!(planned(ops).unwrap_err().starts_with("possible etag mismatch"));
        }
    }

    #[test]
    fn a_transaction_is_bounded_and_leaves_its_fence_alone() {
        let many: Vec<Op> = (0..=TRANSACTION_OPS).map(|n| set(&n.to_string(), None)).collect();
        assert!(planned(many).unwrap_err().contains("1001 operations"));
        let fence = Some(Fence { key: "f".to_owned(), number: 1 });
        let transaction = Transaction { ops: vec![set("f", None)], fence };
        assert!(matches!(plan_steps(&transaction), Err(StateError::TouchesFence { .. })));
    }
}
