// Reads Dapr's files with Dapr's own loaders and writes what they found, as JSON.
//
// The first argument is a folder with `resources`, `configurations` and `run-files`, the second one
// the file to write, since the loaders print to standard output. Of each file in the folders it has
// an entry by its name without the ending.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/dapr/cli/pkg/runfileconfig"
	"github.com/dapr/dapr/pkg/acl"
	"github.com/dapr/dapr/pkg/apis/common"
	"github.com/dapr/dapr/pkg/config"
	"github.com/dapr/dapr/pkg/internal/loader/disk"
	"github.com/dapr/dapr/pkg/resiliency"
	"github.com/dapr/kit/logger"
)

// The app for which files are read.
const app = "web"

// Folders that run files of the corpus name.
var folders = []string{"web", "stock", "api", "resources", "worker"}

type object = map[string]any

func main() {
	all := object{}
	for kind, read := range map[string]func(string) any{
		"resources": resources, "configurations": configuration, "run-files": runFile,
	} {
		found := object{}
		files, err := filepath.Glob(filepath.Join(os.Args[1], kind, "*.y*ml"))
		must(err)
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
			found[name] = read(file)
		}
		all[kind] = found
	}
	to, err := os.Create(os.Args[2])
	must(err)
	text := json.NewEncoder(to)
	text.SetEscapeHTML(false)
	text.SetIndent("", " ")
	must(text.Encode(all))
	must(to.Close())
}

// Loads the file as the only one of a folder.
func resources(file string) any {
	folder := alone(file, "a.yaml")
	defer os.RemoveAll(folder)
	options := disk.Options{AppID: app, Paths: []string{folder}}
	found := object{}
	components, err := disk.NewComponents(options).Load(context.Background())
	if err != nil {
		return object{"refused": true}
	}
	list := []any{}
	for _, one := range components {
		list = append(list, object{
			"name": one.Name, "namespace": one.Namespace, "type": one.Spec.Type,
			"version": one.Spec.Version, "ignoreErrors": one.Spec.IgnoreErrors,
			"initTimeout": one.Spec.InitTimeout, "secretStore": one.SecretStore,
			"scopes": texts(one.Scopes), "metadata": pairs(one.Spec.Metadata),
		})
	}
	found["components"] = list
	endpoints, err := disk.NewHTTPEndpoints(options).Load(context.Background())
	if err != nil {
		return object{"refused": true}
	}
	list = []any{}
	for _, one := range endpoints {
		list = append(list, object{
			"name": one.Name, "baseUrl": one.Spec.BaseURL, "headers": pairs(one.Spec.Headers),
		})
	}
	found["endpoints"] = list
	list = []any{}
	log := logger.NewLogger("files")
	for _, one := range resiliency.LoadLocalResiliency(log, app, folder) {
		spec := one.Spec
		rules := object{
			"name": one.Name, "timeouts": spec.Policies.Timeouts,
			"isUsed": resiliency.New(log).DecodeConfiguration(one) == nil,
		}
		apps := object{}
		for name, target := range spec.Targets.Apps {
			apps[name] = []string{target.Timeout, target.Retry, target.CircuitBreaker}
		}
		actors := object{}
		for name, target := range spec.Targets.Actors {
			actors[name] = []string{
				target.Timeout, target.Retry, target.CircuitBreaker, target.CircuitBreakerScope,
			}
		}
		retries := object{}
		for name, retry := range spec.Policies.Retries {
			most := any(nil)
			if retry.MaxRetries != nil {
				most = *retry.MaxRetries
			}
			retries[name] = []any{retry.Policy, retry.Duration, retry.MaxInterval, most}
		}
		breakers := object{}
		for name, breaker := range spec.Policies.CircuitBreakers {
			breakers[name] = []any{
				breaker.MaxRequests, breaker.Interval, breaker.Timeout, breaker.Trip,
			}
		}
		rules["apps"], rules["actors"] = apps, actors
		rules["retries"], rules["breakers"] = retries, breakers
		list = append(list, rules)
	}
	found["resiliency"] = list
	return found
}

func configuration(file string) any {
	loaded, err := config.LoadStandaloneConfiguration(file)
	if err != nil {
		return object{"refused": true}
	}
	if _, err = acl.ParseAccessControlSpec(loaded.Spec.AccessControlSpec, true); err != nil {
		return object{"refused": true}
	}
	spec := loaded.Spec
	found := object{"name": loaded.Name}
	tracing := object{"samplingRate": "", "stdout": false}
	otel := object{
		"endpointAddress": "", "protocol": "", "isSecure": true, "headers": []string{},
	}
	if spec.TracingSpec != nil {
		tracing["samplingRate"] = spec.TracingSpec.SamplingRate
		tracing["stdout"] = spec.TracingSpec.Stdout
		if one := spec.TracingSpec.Otel; one != nil {
			otel["endpointAddress"], otel["protocol"] = one.EndpointAddress, one.Protocol
			otel["isSecure"], otel["headers"] = one.GetIsSecure(), texts(one.Headers)
		}
	}
	found["tracing"], found["otel"] = tracing, otel
	policies := []any{}
	found["defaultAction"] = config.AllowAccess
	if rules := spec.AccessControlSpec; rules != nil {
		for _, one := range rules.AppPolicies {
			operations := []any{}
			for _, operation := range one.AppOperationActions {
				verbs := texts(operation.HTTPVerb)
				operations = append(operations, []any{operation.Operation, verbs, operation.Action})
			}
			policies = append(policies, object{
				"appId": one.AppName, "namespace": one.Namespace, "trustDomain": one.TrustDomain,
				"defaultAction": one.DefaultAction, "operations": operations,
			})
		}
		found["defaultAction"] = rules.DefaultAction
	}
	found["policies"] = policies
	for name, list := range map[string]config.APIAccessRules{
		"allowed": loaded.GetAPISpec().Allowed, "denied": loaded.GetAPISpec().Denied,
	} {
		rules := []any{}
		for _, rule := range list {
			rules = append(rules, []string{rule.Name, rule.Version, string(rule.Protocol)})
		}
		found[name] = rules
	}
	denied := []string{}
	if spec.ComponentsSpec != nil {
		denied = texts(spec.ComponentsSpec.Deny)
	}
	found["deny"] = denied
	return found
}

func runFile(file string) (found any) {
	folder := alone(file, "dapr.yaml")
	defer os.RemoveAll(folder)
	defer func() {
		if problem := recover(); problem != nil {
			found = object{"refused": true}
		}
	}()
	for _, name := range folders {
		must(os.Mkdir(filepath.Join(folder, name), 0o755))
	}
	must(os.WriteFile(filepath.Join(folder, "config.yaml"), nil, 0o644))
	var read runfileconfig.RunFileConfig
	apps, err := read.GetApps(filepath.Join(folder, "dapr.yaml"))
	if err != nil {
		return object{"refused": true}
	}
	list := []any{}
	for _, one := range apps {
		env := one.Env
		if env == nil {
			env = map[string]string{}
		}
		list = append(list, object{
			"appID": one.AppID, "appPort": one.AppPort, "command": texts(one.Command), "env": env,
			"appProtocol": one.AppProtocol, "daprHTTPPort": one.HTTPPort,
			"daprGRPCPort": one.GRPCPort, "metricsPort": one.MetricsPort,
			"logLevel": one.LogLevel, "enableApiLogging": one.EnableAPILogging,
			"appMaxConcurrency": one.MaxConcurrency, "appHealthCheckPath": one.AppHealthPath,
			"enableAppHealthCheck": one.EnableAppHealth, "maxBodySize": one.MaxRequestBodySize,
			"appLogDestination":   one.AppLogDestination,
			"daprdLogDestination": one.DaprdLogDestination,
		})
	}
	return object{"apps": list}
}

// A folder with a copy of the file alone.
func alone(file string, name string) string {
	folder, err := os.MkdirTemp("", "daprfiles")
	must(err)
	from, err := os.Open(file)
	must(err)
	defer from.Close()
	to, err := os.Create(filepath.Join(folder, name))
	must(err)
	defer to.Close()
	_, err = io.Copy(to, from)
	must(err)
	return folder
}

// Name, value, variable, secret and its key of each.
func pairs(list []common.NameValuePair) []any {
	found := []any{}
	for _, one := range list {
		value := any(nil)
		if one.HasValue() {
			value = one.Value.String()
		}
		secret := one.SecretKeyRef
		found = append(found, []any{one.Name, value, one.EnvRef, secret.Name, secret.Key})
	}
	return found
}

func texts(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
