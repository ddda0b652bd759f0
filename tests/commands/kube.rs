//! `tollway kube`: manifests that get sidecars, and a pod's network whose connections are captured.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tollway_net::netns::NetNs;
use tollway_testkit::{need_right, need_tool};
use tollway_tests::mesh::{AppProtocol, Network};
use tollway_tests::program;

const PORTS: [&str; 4] = ["--port", "15006", "--names-port", "15053"];
const PIN: &str = "tollway1-root.west.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
/// The user of the app in a pod; the sidecar is the tests' own user there.
const APP_USER: &str = "4711";

fn inject(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(program())
        .args(["kube", "inject", "--root-pin", PIN])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn manifests_come_back_with_sidecars_and_notes_go_to_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.yaml");
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: report}\nspec:\n  template:\n    \
               metadata: {annotations: {tollway.dev/prot: http}}\n    spec: {containers: [{name: a}]}\n";
    std::fs::write(&file, job).unwrap();
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";
    let file = file.to_str().unwrap();
    let output = inject(&["-f", "-", "-f", file, "--image", "registry.example/t:1"], service);
    let (printed, notes) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{notes}");
    assert!(printed.starts_with("apiVersion: v1\nkind: Service\n"), "{printed}");
    assert!(printed.contains("\n---\napiVersion: batch/v1\n"), "{printed}");
    for line in ["image: registry.example/t:1", "- \"--app-id=report\"", "restartPolicy: Always"] {
        assert!(printed.lines().any(|found| found.trim() == line), "{line}: {printed}");
    }
    let note = format!(
        "note: {file}:1: document 1: Job report: the annotation tollway.dev/prot has no effect: it is \
         not known\n"
    );
    assert_eq!(notes, note);
    let again = inject(&["-f", "-"], printed);
    assert_eq!(text(&again.stdout), printed);
}

#[test]
fn a_mistake_prints_nothing_and_names_the_object_and_what_to_write() {
    let input = "apiVersion: v1\nkind: Pod\nmetadata: {name: good}\nspec: {containers: [{name: a}]}\n\
                 ---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: bad\n  annotations: \
                 {tollway.dev/protocol: smtp}\nspec: {containers: [{name: a}]}\n";
    let output = inject(&["-f", "-"], input);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    assert_eq!(
        text(&output.stderr),
        "error: standard input:6: document 2: Pod bad: the annotation tollway.dev/protocol is `smtp` \
         [ERR_BAD_CONFIGURATION]\n\
         hint: write `http`, `https`, `h2c`, `grpc`, `grpcs`, `tcp`\n"
    );
    let output = inject(&["-f", "/nowhere/a.yaml"], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot read /nowhere/a.yaml"), "{output:?}");
}

/// Gives the namespace of this thread a device with a route, as that of a pod has one.
fn plug(ip: &Path) -> Result<(), String> {
    for line in [
        "link add eth0 type veth peer name far",
        "link set far up",
        "link set eth0 up",
        "address add 10.9.0.2/24 dev eth0",
        "route add default via 10.9.0.1",
    ] {
        let output = Command::new(ip).args(line.split(' ')).output();
        let output = output.map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("ip {line}: {}", text(&output.stderr).trim()));
        }
    }
    Ok(())
}

/// Runs a program as the app's user; what it printed.
#[track_caller]
fn as_app(setpriv: &Path, command: &[&str]) -> String {
    let output = Command::new(setpriv)
        .args(["--reuid", APP_USER, "--regid", APP_USER, "--clear-groups", "--"])
        .args(command)
        .output()
        .unwrap();
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn an_app_in_a_pod_calls_services_by_their_names_and_others_as_before() {
    let (curl, ip, setpriv) = (need_tool!("curl"), need_tool!("ip"), need_tool!("setpriv"));
    let namespace = need_right!(NetNs::create("pod"));
    let body = || {
        need_right!(plug(&ip));
        let own = rustix::process::getuid().as_raw().to_string();
        let captured = Command::new(program())
            .args(["kube", "capture", "--sidecar-uid", &own])
            .args(PORTS)
            .output()
            .unwrap();
        need_right!(match captured.status.success() {
            true => Ok(()),
            false => Err(text(&captured.stderr)),
        });
        let west = Network::start("west", "127.0.0.1", &[]);
        let _stock = west.app("stock", "stock-1", AppProtocol::Http);
        let options = ["--capture-port", "15006", "--capture-names-port", "15053"];
        let web = west.sidecar("web", &options);
        web.until_served("stock");
        let call = |url: &str| {
            as_app(&setpriv, &[curl.to_str().unwrap(), "-sS", "-i", "--max-time", "20", url])
        };
        let answer = call("http://stock.mesh/healthz");
        assert!(answer.contains("x-echo-name: stock-1"), "{answer}\n{}", web.process.log());
        // Not through the mesh, and by its sidecar all the same.
        let server = TcpListener::bind("10.9.0.2:0").unwrap();
        let address = server.local_addr().unwrap();
        let served = std::thread::spawn(move || {
            let (mut accepted, _) = server.accept().unwrap();
            let begun = accepted.read(&mut [0; 4096]).unwrap();
            assert!(begun > 0);
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\npage";
            accepted.write_all(answer.as_bytes()).unwrap();
            std::io::copy(&mut accepted, &mut std::io::sink()).unwrap();
        });
        let answer = call(&format!("http://{address}/"));
        assert!(answer.ends_with("page"), "{answer}\n{}", web.process.log());
        served.join().unwrap();
        let decision = |word: &str| {
            let name = format!("tollway_intercepted_connections_total{{decision=\"{word}\"}}");
            web.process.metric(&name).unwrap()
        };
        assert_eq!((decision("declared"), decision("outside")), (1, 1));
        // The port itself leads nowhere, and not to the sidecar for ever.
        let answer = call("http://127.0.0.1:15006/");
        assert!(answer.contains("curl: ("), "{answer}");
        assert_eq!(decision("refused"), 1);
    };
    namespace.run(body).unwrap();
}

/// Samples and what becomes of them, for those who read. `UPDATE_DOCS=1` writes the results.
#[test]
fn samples_become_what_is_written_beside_them() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/kube");
    for name in ["shop", "dapr"] {
        let input = std::fs::read_to_string(corpus.join(format!("{name}.yaml"))).unwrap();
        let output = inject(&["-f", "-", "--image", "tollway:sample"], &input);
        assert!(output.status.success(), "{}", text(&output.stderr));
        // The version is that of the program.
        let version = format!("tollway.dev/injected: \"{}\"", env!("CARGO_PKG_VERSION"));
        let found = text(&output.stdout).replace(&version, "tollway.dev/injected: VERSION");
        let result = corpus.join(format!("{name}.injected.yaml"));
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&result, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&result).unwrap_or_default();
        assert!(found == expected, "{} differs; it is now:\n{found}", result.display());
    }
}

/// `tollway kube install` has in it what the chart renders; `UPDATE_DOCS=1` writes it again.
#[test]
fn the_rendered_chart_is_that_of_the_chart() {
    let helm = need_tool!("helm");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&helm);
        command.current_dir(&root).args(arguments).args(["--kube-version", "1.33.0"]);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), error)
    };
    let chart = "charts/tollway";
    let (is_good, printed, error) = run(&["lint", "--strict", chart]);
    assert!(is_good, "{printed}{error}");
    let template = |values: &[&str]| {
        let mut arguments = vec!["template", "tollway", chart, "--namespace=placeholder-namespace"];
        values.iter().for_each(|value| arguments.extend(["--set", value]));
        run(&arguments)
    };
    let names = [
        "network=placeholder-network",
        "image.name=placeholder-image",
        "image.tag=placeholder-tag",
    ];
    let (is_good, rendered, error) = template(&names);
    assert!(is_good, "{error}");
    let file = root.join("charts/tollway.yaml");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, &rendered).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written == rendered, "charts/tollway.yaml is old: UPDATE_DOCS=1 writes it again");
    // Other shapes, each by what only it has.
    for (values, has) in [
        (&["control.store=memory"][..], "emptyDir: {medium: Memory, sizeLimit: 256Mi}"),
        (&["control.volume.storageClass=-"], "storageClassName: \"\""),
        (
            &["control.store=etcd", "control.etcd.members={a:2379,b:2379}", "control.replicas=3"],
            "--store=etcd://a:2379,b:2379/tollway",
        ),
        (
            &["control.store=etcd", "control.etcd.own.enabled=true", "networkPolicy.enabled=true"],
            "--initial-cluster=tollway-etcd-0=https://tollway-etcd-0.tollway-etcd.placeholder-namespace.svc:2380,tollway-etcd-1=",
        ),
        (
            &[
                "control.store=etcd",
                "control.etcd.own.enabled=true",
                "clusterRights=false",
                "gateway.enabled=false",
            ],
            "--etcd-secret=placeholder-namespace/tollway-etcd",
        ),
        (&["clusterRights=false", "gateway.tokenSecret=join"], "secretName: join"),
        (&["gateway.dialOut=true"], "- --dial-out"),
        (&["networkPolicy.enabled=true"], "kind: NetworkPolicy"),
        (&["injector.failurePolicy=Ignore"], "failurePolicy: Ignore"),
        (
            &["fabric.groups[0].name=racks", "fabric.groups[0].devices={eth1,eth2}"],
            "--kubernetes-fabric=tollway-fabric/tollway-fabric-racks=racks",
        ),
        (
            &[
                "fabric.groups[0].name=racks",
                "fabric.groups[0].devices={eth1}",
                "fabric.groups[1].name=rooms",
                "fabric.groups[1].devices={eth2}",
                "fabric.groups[1].hostPID=true",
                "fabric.namespace=placeholder-namespace",
                "fabric.privileged=true",
            ],
            "--admin-listen=0.0.0.0:15031",
        ),
    ] {
        let (is_good, rendered, error) = template(values);
        assert!(is_good && rendered.contains(has), "{values:?}: {error}\n{rendered}");
    }
    // Mistakes, each with what to do.
    for (values, says) in [
        (&["control.replicas=2"][..], "several replicas need control.store=etcd"),
        (&["control.store=etcd"], "name the members of etcd"),
        (&["control.etcd.own.enabled=true"], "these members are for control.store=etcd"),
        (
            &[
                "control.store=etcd",
                "control.etcd.own.enabled=true",
                "control.etcd.members={a:2379}",
            ],
            "leave one out",
        ),
        (
            &["control.store=etcd", "control.etcd.own.enabled=true", "control.etcd.own.members=2"],
            "/control/etcd/own/members",
        ),
        (&["clusterRights=false"], "name a Secret that has it"),
        (&["contrl.replicas=2"], "contrl"),
        (&["network=West"], "network"),
        (&["fabric.groups[0].name=racks"], "devices"),
        (
            &[
                "fabric.groups[0].name=racks",
                "fabric.groups[0].devices={eth1}",
                "clusterRights=false",
                "gateway.enabled=false",
            ],
            "which needs clusterRights=true",
        ),
        (&["injector.failurePolicy=Maybe"], "failurePolicy"),
    ] {
        let (is_good, _, error) = template(values);
        assert!(!is_good && error.contains(says), "{values:?}: {error}");
    }
}
