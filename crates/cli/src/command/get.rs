//! `tollway get`: what a control plane knows.

mod localities;
mod tables;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use tollway_model::{Label, Object, ObjectKind};
use tollway_wire::v1;

use super::moment::now_unix_ms;
use super::objects::parse_name;
use crate::async_runtime::block_on;
use crate::command::access::StoreArg;
use tollway_config::manifest::{Manifest, to_yaml};

#[derive(Args)]
pub(crate) struct GetArgs {
    what: What,
    /// One object: NAME or NAMESPACE/NAME.
    name: Option<String>,
    /// Only of this namespace; that of a name without one is `default` if not given.
    #[arg(short = 'n', long)]
    namespace: Option<Label>,
    #[command(flatten)]
    store: StoreArg,
    /// Output format; what is printed as YAML can be applied again.
    #[arg(short = 'o', long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Print JSON, as `-o json` does.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Output {
    Table,
    Json,
    /// Not for services.
    Yaml,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Services of this network and of joined ones.
    Services,
    /// Zones and regions: where services run, and which level serves callers there.
    #[value(alias = "locality")]
    Localities,
    /// Policies: which callers may call which services.
    #[value(alias = "policy")]
    Policies,
    /// Routes: what callers' sidecars do with requests for a service.
    #[value(alias = "route")]
    Routes,
    /// Traffic policies: how calls share replicas and meet failures.
    #[value(alias = "traffic-policy")]
    TrafficPolicies,
    /// Failover: networks that may serve a service called in any.
    #[value(alias = "failover")]
    Failovers,
    /// Egress: which hosts out of the mesh apps may call.
    #[value(alias = "egresses")]
    Egress,
}

impl GetArgs {
    pub(crate) fn prints_json(&self) -> bool {
        self.json || self.output == Output::Json
    }
}

pub(crate) fn run(args: &GetArgs) -> Result<()> {
    let output = if args.json { Output::Json } else { args.output };
    block_on(async {
        match args.what {
            What::Services => services(args, output).await,
            What::Localities => localities(args, output).await,
            What::Policies => objects(args, ObjectKind::Policy, output).await,
            What::Routes => objects(args, ObjectKind::Route, output).await,
            What::TrafficPolicies => objects(args, ObjectKind::TrafficPolicy, output).await,
            What::Failovers => objects(args, ObjectKind::Failover, output).await,
            What::Egress => objects(args, ObjectKind::Egress, output).await,
        }
    })?
}

async fn services(args: &GetArgs, output: Output) -> Result<()> {
    let known = all_services(args, output).await?;
    if output == Output::Json {
        print_json(&known)
    } else {
        print_table(&known)
    }
    Ok(())
}

async fn localities(args: &GetArgs, output: Output) -> Result<()> {
    let known = all_services(args, output).await?;
    let served = localities::of(&known.services).context("the control plane's answer")?;
    if output == Output::Json {
        println!("{}", localities::json(&served));
    } else {
        print!("{}", localities::table(&served));
    }
    Ok(())
}

async fn all_services(args: &GetArgs, output: Output) -> Result<v1::ListServicesResponse> {
    if args.name.is_some() || args.namespace.is_some() {
        bail!("services are not chosen by name here; leave NAME and --namespace out");
    }
    if output == Output::Yaml {
        bail!("services are printed as a table or as JSON: use `-o json`");
    }
    Ok(args.store.admin().await?.services().await?)
}

async fn objects(args: &GetArgs, kind: ObjectKind, output: Output) -> Result<()> {
    let mut request = v1::ListObjectsRequest {
        kind: v1::ObjectKind::from(kind).into(),
        ..v1::ListObjectsRequest::default()
    };
    if let Some(name) = &args.name {
        let namespace = args.namespace.clone().map_or_else(|| Label::new("default"), Ok)?;
        let name = parse_name(name, &namespace)?;
        request.namespace = name.namespace.to_string();
        request.name = name.name.to_string();
    } else if let Some(namespace) = &args.namespace {
        request.namespace = namespace.to_string();
    }
    let shown = format!("{}/{}", request.namespace, request.name);
    let known = args.store.admin().await?.objects(request).await?;
    if args.name.is_some() && known.objects.is_empty() {
        bail!("there is no {kind} {shown}");
    }
    let read = |object| tollway_wire::object(object).context("the control plane's answer");
    let objects: Vec<Object> = known.objects.iter().map(read).collect::<Result<_>>()?;
    match output {
        Output::Table => {
            let network = Label::new(&known.network).context("the control plane's answer")?;
            print!("{}", tables::of_objects(kind, &objects, &network, now_unix_ms()));
        }
        Output::Json => match (&args.name, &objects[..]) {
            (Some(_), [one]) => println!("{}", serde_json::to_string(&Manifest::from(one))?),
            _ => {
                let manifests: Vec<_> = objects.iter().map(Manifest::from).collect();
                println!("{}", serde_json::to_string(&manifests)?);
            }
        },
        Output::Yaml => print!("{}", to_yaml(&objects)?),
    }
    Ok(())
}

fn full_name(service: &v1::ServiceStatus) -> String {
    service
        .service
        .as_ref()
        .map(|name| format!("{}.{}.{}", name.app, name.namespace, name.network))
        .unwrap_or_default()
}

fn print_json(known: &v1::ListServicesResponse) {
    let services: Vec<_> = known
        .services
        .iter()
        .map(|service| {
            serde_json::json!({
                "service": full_name(service),
                "protocol": protocol(service),
                "ready_replicas": service.ready_replicas,
                "workloads": service.workloads,
            })
        })
        .collect();
    println!("{}", serde_json::json!({ "revision": known.revision, "services": services }));
}

fn print_table(known: &v1::ListServicesResponse) {
    println!("{:<40} {:<8} {:>6}", "SERVICE", "PROTOCOL", "READY");
    for service in &known.services {
        println!(
            "{:<40} {:<8} {:>6}",
            full_name(service),
            protocol(service),
            service.ready_replicas
        );
    }
}

fn protocol(service: &v1::ServiceStatus) -> String {
    // Of an app without a port of its own, none is stated.
    tollway_wire::protocol(service.protocol).map_or("-".to_owned(), |p| p.to_string())
}
