//! Dapr's quickstarts and an example of the SDK, run as their pages have it, with `tollway run` for
//! `dapr run`. Each is done when all has been printed that its page shows.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::super::alone::alone;
use super::sources::{PYTHON_SDK, QUICKSTART_FILES, Source};
use super::{Site, python};
use crate::process;

/// Time for one of them, of which most take some seconds.
const WITHIN: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// One of them.
pub(super) struct Quickstart {
    pub(super) name: &'static str,
    pub(super) language: &'static str,
    /// What is shown, for the page.
    pub(super) what: &'static str,
    pub(super) source: &'static Source,
    /// The folder that it runs in.
    folder: &'static str,
    /// Folders with a package-lock.json, whose packages are installed first.
    npm: &'static [&'static str],
    /// A shell's script. The function `redis` starts the server, whose process is `$REDIS`.
    script: &'static str,
    /// Parts of what is printed: each list in its order.
    printed: &'static [&'static [&'static str]],
}

/// What the JavaScript apps print that keep orders, whichever way they reach the store.
const ORDERS_OF_JAVASCRIPT: &[&str] = &[
    "Saving Order:  { orderId: '1' }",
    "Getting Order:  { orderId: '1' }",
    "Deleting Order:  { orderId: '1' }",
    "Getting Order:  { orderId: '9' }",
];

const FILE: &str = "redis; tollway run -f .";
/// The same by Dapr's own command line, which starts, finds, calls and ends our program as daprd.
const FILE_BY_DAPR: &str = r#"
log=$PWD/apps.log; : > "$log"; tail -F "$log" & exec >> "$log" 2>&1
dapr run -f . &
until grep -q 'Order passed: {"orderId": 2}' "$log"; do sleep 0.1; done
dapr list | grep checkout
dapr invoke --app-id order-processor --method orders --data '{"orderId": 77}'
dapr stop -f .
wait
"#;
/// One app of service invocation after the other, each in a terminal of its own; the one that is
/// called stops for a while. All write to one file, so that its lines are in the order of time.
const STOPS_AND_COMES_BACK: &str = r#"
log=$PWD/apps.log; : > "$log"; tail -F "$log" & exec >> "$log" 2>&1
called="--app-port 8001 --app-id order-processor --resources-path ../../../resources/ \
    --app-protocol http --dapr-http-port 3501 -- python3 app.py"
(cd order-processor && exec tollway run --dapr $called) & FIRST=$!
until curl -fs http://localhost:3501/v1.0/healthz; do sleep 0.2; done
(cd checkout && exec tollway run --dapr --app-id checkout --resources-path ../../../resources/ \
    --app-protocol http --dapr-http-port 3500 -- python3 app.py) &
until grep -q 'Order passed: {"orderId": 2}' "$log"; do sleep 0.1; done
kill $FIRST; wait $FIRST; echo "=== it is stopped"
sleep 7; echo "=== it comes back"
cd order-processor && tollway run --dapr $called
"#;
/// The store stops for a while.
const STORE_STOPS: &str = r#"
log=$PWD/apps.log; : > "$log"; tail -F "$log" & exec >> "$log" 2>&1
redis
tollway run --dapr --app-id order-processor --resources-path ../../../resources/ -- python3 app.py & APP=$!
until grep -q "Deleting Order: {'orderId': '2'}" "$log"; do sleep 0.1; done
kill $REDIS; wait $REDIS; echo "=== the store is stopped"
sleep 7; echo "=== the store comes back"; redis
wait $APP
"#;
/// A Node.js app with a store, and a Python app that calls it; without a file of any kind.
const HELLO: &str = r#"
(cd node && exec tollway run --dapr --app-id nodeapp --app-port 3000 --dapr-http-port 3500 node app.js) &
until curl -fs http://localhost:3500/v1.0/healthz; do sleep 0.2; done
cd node
curl -s -XPOST -d @sample.json -H Content-Type:application/json http://localhost:3500/v1.0/invoke/nodeapp/method/neworder
curl -s http://localhost:3500/v1.0/invoke/nodeapp/method/order; echo
cd ../python
exec tollway run --dapr --app-id pythonapp python3 app.py
"#;
const ACTORS: &str = r#"
tollway run --dapr --app-id demo-actor --app-port 3000 -- uvicorn --port 3000 demo_actor_service:app &
until curl -s http://localhost:3000/ > actors.log; do sleep 0.2; done
exec tollway run --dapr --app-id demo-client -- python3 demo_actor_client.py
"#;

pub(super) const QUICKSTARTS: &[Quickstart] = &[
    Quickstart {
        name: "service invocation",
        language: "Python",
        what: "`tollway run -f .`: twelve orders pass from app to app, the first one too",
        source: &QUICKSTART_FILES,
        folder: "service_invocation/python/http",
        npm: &[],
        script: FILE,
        printed: &[
            &["Order received : {\"orderId\": 1}", "Order received : {\"orderId\": 12}"],
            &["Order passed: {\"orderId\": 1}", "Order passed: {\"orderId\": 12}"],
        ],
    },
    Quickstart {
        name: "service invocation, Dapr's command line",
        language: "Python",
        what: "`dapr run -f .` with Tollway in daprd's place, `dapr list`, `dapr invoke` and `dapr stop`",
        source: &QUICKSTART_FILES,
        folder: "service_invocation/python/http",
        npm: &[],
        script: FILE_BY_DAPR,
        printed: &[
            &[
                "Validating config and starting app \"order-processor\"",
                "Started Dapr with app id \"order-processor\"",
                "Validating config and starting app \"checkout\"",
                "Started Dapr with app id \"checkout\"",
            ],
            &["Order received : {\"orderId\": 77}"],
            &["App invoked successfully", "processes stopped successfully"],
        ],
    },
    Quickstart {
        name: "service invocation, JavaScript",
        language: "JavaScript",
        what: "`tollway run -f .`: twelve orders pass from app to app, the first one too",
        source: &QUICKSTART_FILES,
        folder: "service_invocation/javascript/http",
        npm: &["order-processor", "checkout"],
        script: FILE,
        printed: &[
            &["Order received: { orderId: 1 }", "Order received: { orderId: 12 }"],
            &["Order passed: {\"orderId\":1}", "Order passed: {\"orderId\":12}"],
        ],
    },
    Quickstart {
        name: "state, HTTP",
        language: "Python",
        what: "`tollway run -f .`: orders are saved in Redis, read and deleted",
        source: &QUICKSTART_FILES,
        folder: "state_management/python/http",
        npm: &[],
        script: FILE,
        printed: &[&[
            "Saving Order: {'orderId': '1'}",
            "Getting Order: {'orderId': '1'}",
            "Deleted Order: {'orderId': '1'}",
            "Getting Order: {'orderId': '9'}",
        ]],
    },
    Quickstart {
        name: "state, SDK",
        language: "Python",
        what: "the same by Dapr's SDK, over gRPC",
        source: &QUICKSTART_FILES,
        folder: "state_management/python/sdk",
        npm: &[],
        script: FILE,
        printed: &[&[
            "Saving Order: {'orderId': '1'}",
            "Result after get: b\"{'orderId': '1'}\"",
            "Deleting Order: {'orderId': '1'}",
            "Result after get: b\"{'orderId': '9'}\"",
        ]],
    },
    Quickstart {
        name: "state, HTTP, JavaScript",
        language: "JavaScript",
        what: "`tollway run -f .`: orders are saved in Redis, read and deleted",
        source: &QUICKSTART_FILES,
        folder: "state_management/javascript/http",
        npm: &["order-processor"],
        script: FILE,
        printed: &[ORDERS_OF_JAVASCRIPT],
    },
    Quickstart {
        name: "state, SDK, JavaScript",
        language: "JavaScript",
        what: "the same by Dapr's SDK",
        source: &QUICKSTART_FILES,
        folder: "state_management/javascript/sdk",
        npm: &["order-processor"],
        script: FILE,
        printed: &[ORDERS_OF_JAVASCRIPT],
    },
    Quickstart {
        name: "resiliency, service to service",
        language: "Python",
        what: "the app that is called stops and comes back; its callers wait",
        source: &QUICKSTART_FILES,
        folder: "service_invocation/python/http",
        npm: &[],
        script: STOPS_AND_COMES_BACK,
        printed: &[
            &[
                "Order passed: {\"orderId\": 2}",
                "=== it is stopped",
                "=== it comes back",
                "Order passed: {\"orderId\": ",
            ],
            &["=== it comes back", "Order received : {\"orderId\": "],
        ],
    },
    Quickstart {
        name: "resiliency, service to component",
        language: "Python",
        what: "Redis stops and comes back; the app waits and goes on",
        source: &QUICKSTART_FILES,
        folder: "state_management/python/sdk/order-processor",
        npm: &[],
        script: STORE_STOPS,
        printed: &[&[
            "Saving Order: {'orderId': '2'}",
            "=== the store is stopped",
            "=== the store comes back",
            "Saving Order: {'orderId': '",
            "Deleting Order: {'orderId': '",
        ]],
    },
    Quickstart {
        name: "hello world",
        language: "JavaScript, Python",
        what: "an app with a store and one that calls it; the store is that of the network",
        source: &QUICKSTART_FILES,
        folder: "tutorials/hello-world",
        npm: &["node"],
        script: HELLO,
        printed: &[
            &["{\"orderId\":\"42\"}"],
            &[
                "Got a new order! Order ID: 42",
                "Successfully persisted state",
                "Got a new order! Order ID: 1",
                "Got a new order! Order ID: 3",
            ],
        ],
    },
    Quickstart {
        name: "actors",
        language: "Python",
        what: "an actor with state, a reminder and a timer, and its client",
        source: &PYTHON_SDK,
        folder: "examples/demo_actor/demo_actor",
        npm: &[],
        script: ACTORS,
        printed: &[
            &[
                "call actor method via proxy.invoke_method()",
                // Its page still has it as Python writes bytes.
                "null",
                "call actor method using rpc style",
                "None",
                "call SetMyData actor method to save the state",
                "call GetMyData actor method to get the state",
                "Register reminder",
                "Register timer",
                "stop reminder",
                "stop timer",
                "clear actor state",
            ],
            &[
                "Activate DemoActor actor!",
                "has_value: False",
                "set_my_data: {'data': 'new_data'}",
                "has_value: True",
                "set reminder is done",
                "set_timer is done",
                "receive_reminder is called - demo_reminder reminder - b'reminder_state'",
                "clear_my_data",
            ],
        ],
    },
];

impl Quickstart {
    /// Whether it prints all that it should, when it runs below this copy of its source.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn run(&self, site: &Site, source: &Path) -> Result<bool> {
        let folder = source.join(self.folder);
        for packages in self.npm {
            let mut npm = Command::new("npm");
            npm.args(["ci", "--silent"]).current_dir(folder.join(packages));
            process::run(&mut npm)?;
        }
        let name = self.name.replace([',', ' ', '\''], "-");
        let log = site.logs.join(format!("{name}.log"));
        let file = std::fs::File::create(&log).with_context(|| format!("cannot write {log:?}"))?;
        let redis = site.logs.join(format!("{name}.redis.log"));
        let script = format!(
            "redis() {{ redis-server --port 6379 --save '' >> {} & REDIS=$!; \
             until redis-cli ping > {0}.ping 2>&1; do sleep 0.1; done; }}\n{}",
            redis.display(),
            self.script
        );
        let mut command = alone(&script);
        command.current_dir(&folder).env("HOME", &site.home);
        command.env("PATH", site.path(&python::environment()?)?).env("PYTHONUNBUFFERED", "1");
        command.stdout(file.try_clone()?).stderr(file);
        let running = Running(command.spawn().context("cannot start unshare")?);
        let until = Instant::now() + WITHIN;
        while Instant::now() < until {
            let printed = std::fs::read(&log).with_context(|| format!("cannot read {log:?}"))?;
            let printed = String::from_utf8_lossy(&printed);
            if self.printed.iter().all(|parts| are_in_order(&printed, parts)) {
                return Ok(true);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        drop(running);
        Ok(false)
    }
}

/// A process that ends with this value, and all in its namespaces.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails where it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a text has all parts, each behind the one before.
fn are_in_order(text: &str, parts: &[&str]) -> bool {
    let mut rest = text;
    parts.iter().all(|part| match rest.split_once(part) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_too_early_does_not_count() {
        assert!(are_in_order("a stop b a", &["stop", "a"]));
        assert!(!are_in_order("a stop b", &["stop", "a"]));
        assert!(!are_in_order("a", &["a", "a"]));
    }

    #[test]
    fn each_is_in_a_folder_whose_files_are_known() {
        for one in QUICKSTARTS {
            let known = one.source.trees.iter().any(|(tree, _)| one.folder.starts_with(tree))
                || one.source.trees.iter().any(|(tree, _)| tree.starts_with(one.folder));
            assert!(known, "{}", one.name);
            assert_eq!(QUICKSTARTS.iter().filter(|other| other.name == one.name).count(), 1);
        }
    }
}
