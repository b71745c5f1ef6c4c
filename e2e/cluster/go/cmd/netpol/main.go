// Command netpol enforces NetworkPolicy on one node by iptables and ipset.
//
// It is kube-router's policy controller alone: no router, no service proxy. Refused traffic is rejected, not dropped.
package main

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file`")
	node := flag.String("node", "", "`name` of the node this process runs on")
	services := flag.String("service-cidr", "", "address `range` of Services")
	klog.InitFlags(nil)
	flag.Parse()

	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := enforce(ctx, *kubeconfig, *node, *services); err != nil {
		klog.Exit(err)
	}
}

// enforce keeps the node's rules as the policies say until ctx ends; then it leaves the rules as they are.
func enforce(ctx context.Context, kubeconfig, node, services string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := os.Setenv("NODE_NAME", node); err != nil { // the only way to name the node to kube-router
		return err
	}

	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	router := options.NewKubeRouterConfig()
	router.EnableIPv4, router.RunFirewall = true, true
	router.ClusterIPCIDRs = []string{services}
	router.IPTablesSyncPeriod = time.Minute // a full pass beside the events, should somebody flush the rules
	tables, sets, err := netpol.NewIPTablesHandlers(router)
	if err != nil {
		return err
	}
	var mutex sync.Mutex
	controller, err := netpol.NewNetworkPolicyController(client, router, pods, policies, namespaces, &mutex, tables, sets)
	if err != nil {
		return err
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods: controller.PodEventHandler, namespaces: controller.NamespaceEventHandler, policies: controller.NetworkPolicyEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}

	beats := make(chan *healthcheck.ControllerHeartbeat, 10)
	go func() {
		for range beats { // nobody watches the controller's pulse here, but a full channel would block it
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(beats, ctx.Done(), &running)
	running.Wait()
	return nil
}
