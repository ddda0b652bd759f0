//! A real browser (Chromium, headless) for tests of pages: it opens, reads, types, listens.
//!
//! It is driven over its debugging pipe, two FIFOs that a shell passes to it as the descriptors 3
//! and 4: no port, no library. Every error that a page reports is stored until it is read.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::{Process, Start, TempDir};

/// How long an answer of the browser may take, on a busy machine.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Interval at which a condition of a page is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Descriptors 3 and 4 are the pipe; the root user of a container has no sandbox to offer.
const SCRIPT: &str = "exec \"$1\" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
     --disable-background-networking --no-first-run --hide-scrollbars --remote-debugging-pipe \
     \"--user-data-dir=$2\" about:blank 3<\"$3\" 4>\"$4\"";

/// A browser with one page.
pub struct Browser {
    commands: File,
    events: Receiver<Value>,
    session: String,
    last_id: u64,
    errors: Vec<String>,
    process: Process,
    _dir: TempDir,
}

impl Browser {
    /// Starts the browser `program`, which is Chromium, on an empty page.
    pub fn start(program: &Path) -> Result<Self> {
        let dir = TempDir::new()?;
        let [commands, answers, profile] = ["in", "out", "profile"].map(|n| dir.path().join(n));
        for fifo in [&commands, &answers] {
            mknodat(CWD, fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
                .context("could not make a FIFO for the browser")?;
        }
        let process = Start::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(program)
            .arg(&profile)
            .args([&commands, &answers])
            .start()?;
        // In the shell's order: each side waits for the other.
        let commands = OpenOptions::new().write(true).open(commands)?;
        let events = read_in_background(File::open(answers)?);
        let mut browser = Self {
            commands,
            events,
            session: String::new(),
            last_id: 0,
            errors: Vec::new(),
            process,
            _dir: dir,
        };
        browser.attach().with_context(|| browser.process.log())?;
        Ok(browser)
    }

    fn attach(&mut self) -> Result<()> {
        let page = self.ask("Target.createTarget", json!({"url": "about:blank"}))?;
        let target = json!({"targetId": page["targetId"], "flatten": true});
        let attached = self.ask("Target.attachToTarget", target)?;
        self.session = attached["sessionId"].as_str().context("no session")?.to_owned();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            self.ask(domain, json!({}))?;
        }
        Ok(())
    }

    /// Goes to `url` and waits until it is loaded.
    pub fn open(&mut self, url: &str) -> Result<()> {
        let went = self.ask("Page.navigate", json!({"url": url}))?;
        ensure!(went.get("errorText").is_none(), "could not open {url}: {went}");
        self.until("document.readyState === 'complete'")
    }

    /// The size of the page's view, in pixels.
    pub fn resize(&mut self, width: u32, height: u32) -> Result<()> {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.ask("Emulation.setDeviceMetricsOverride", size).map(drop)
    }

    /// Whether the page is laid out as for print.
    pub fn on_paper(&mut self, paper: bool) -> Result<()> {
        let media = if paper { "print" } else { "" };
        self.ask("Emulation.setEmulatedMedia", json!({"media": media})).map(drop)
    }

    /// Sets the user's preference that the page sees: a dark or a light page.
    pub fn prefer_dark(&mut self, dark: bool) -> Result<()> {
        let value = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": value}]);
        self.ask("Emulation.setEmulatedMedia", json!({"features": features})).map(drop)
    }

    /// What the JavaScript expression is worth; an exception is an error.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let asked = json!({
            "expression": expression, "returnByValue": true, "awaitPromise": true,
        });
        let answer = self.ask("Runtime.evaluate", asked)?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            bail!("{expression}: {thrown}");
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until the expression is true.
    pub fn until(&mut self, expression: &str) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < ANSWER_WITHIN {
            // While a page is being left there is nothing to ask.
            if self.evaluate(expression).is_ok_and(|value| value == json!(true)) {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let page = self.evaluate("location.href + '\\n' + document.body.innerText.slice(0, 2000)");
        bail!("never true: {expression}\n{}", page.unwrap_or_default())
    }

    /// Presses and releases a key: one character, or a name such as `Enter`, `Tab`, `ArrowDown`.
    pub fn press(&mut self, key: &str) -> Result<()> {
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Tab" => (9, ""),
            "Escape" => (27, ""),
            "Home" => (36, ""),
            "End" => (35, ""),
            "ArrowLeft" => (37, ""),
            "ArrowUp" => (38, ""),
            "ArrowRight" => (39, ""),
            "ArrowDown" => (40, ""),
            one => (one.bytes().next().map_or(0, |b| b.to_ascii_uppercase().into()), one),
        };
        let mut event = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if !text.is_empty() {
            event["text"] = text.into();
        }
        self.ask("Input.dispatchKeyEvent", event.clone())?;
        event["type"] = "keyUp".into();
        self.ask("Input.dispatchKeyEvent", event).map(drop)
    }

    /// Types the text into what has the focus.
    pub fn type_in(&mut self, text: &str) -> Result<()> {
        text.chars().try_for_each(|one| self.press(&one.to_string()))
    }

    /// Clicks the middle of the first element that the selector finds, which it scrolls to.
    pub fn click(&mut self, selector: &str) -> Result<()> {
        let place = self.evaluate(&format!(
            "(() => {{ const found = document.querySelector({}); found.scrollIntoView({{block: \
             'center'}}); const box = found.getBoundingClientRect(); return [box.x + box.width / 2, \
             box.y + box.height / 2]; }})()",
            json!(selector)
        ))?;
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({
                "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1,
            });
            self.ask("Input.dispatchMouseEvent", event)?;
        }
        Ok(())
    }

    /// A picture (PNG, base64) of the whole page in its present width.
    pub fn picture(&mut self) -> Result<String> {
        let asked = json!({"format": "png", "captureBeyondViewport": true});
        let answer = self.ask("Page.captureScreenshot", asked)?;
        Ok(answer["data"].as_str().context("no picture")?.to_owned())
    }

    /// What the pages have complained about since the last time: exceptions, errors on the
    /// console, what a policy forbade, what could not be loaded.
    pub fn errors(&mut self) -> Result<Vec<String>> {
        // An answer comes after whatever was reported before the question.
        self.evaluate("0")?;
        Ok(std::mem::take(&mut self.errors))
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.last_id += 1;
        let id = self.last_id;
        let mut command = json!({"id": id, "method": method, "params": parameters});
        if !self.session.is_empty() {
            command["sessionId"] = self.session.as_str().into();
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).with_context(|| format!("could not ask for {method}"))?;
        let started = Instant::now();
        loop {
            let left = ANSWER_WITHIN.saturating_sub(started.elapsed());
            let mut message = match self.events.recv_timeout(left) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => bail!("no answer to {method}"),
                Err(RecvTimeoutError::Disconnected) => bail!("the browser ended at {method}"),
            };
            if message["id"] == id {
                ensure!(message.get("error").is_none(), "{method}: {}", message["error"]);
                return Ok(message["result"].take());
            }
            self.errors.extend(complaint(&message));
        }
    }
}

/// What an event complains about.
fn complaint(event: &Value) -> Option<String> {
    let parameters = &event["params"];
    match event["method"].as_str()? {
        "Runtime.exceptionThrown" => Some(parameters["exceptionDetails"].to_string()),
        "Runtime.consoleAPICalled" if parameters["type"] == "error" => {
            Some(parameters["args"].to_string())
        }
        "Log.entryAdded" if parameters["entry"]["level"] == "error" => {
            Some(parameters["entry"].to_string())
        }
        _ => None,
    }
}

fn read_in_background(answers: File) -> Receiver<Value> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(answers).split(0) {
            let parsed = message.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            let Some(message) = parsed else { return };
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    receiver
}
