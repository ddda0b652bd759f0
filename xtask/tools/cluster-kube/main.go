//go:build !etcd

// The programs of Kubernetes: the name by which this one is called chooses. Together they take a third of the
// space and of the time to build.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	var daemon *cobra.Command
	switch name := filepath.Base(os.Args[0]); name {
	case "kubectl":
		if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
		return
	case "kube-apiserver":
		daemon = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		daemon = controllers.NewControllerManagerCommand()
	case "kube-proxy":
		daemon = proxy.NewProxyCommand()
	case "kube-scheduler":
		daemon = scheduler.NewSchedulerCommand()
	case "kubelet":
		daemon = kubelet.NewKubeletCommand(context.Background())
	default:
		fmt.Fprintf(os.Stderr, "no program is called %s: use a link with the name of one\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(daemon))
}
