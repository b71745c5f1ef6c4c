"""The sandbox namespace's policies, whole."""

from tests.unit.manifests.given import parsed
from towline.manifests.network_policy import sandbox_policies


def test_nothing_but_the_gateway_comes_in_and_only_a_class_with_internet_gets_out():
    policies = sandbox_policies("towline-sandboxes", "towline-system")

    assert all(policy["metadata"]["namespace"] == "towline-sandboxes" for policy in policies)
    assert all(policy["metadata"]["labels"] == {"app.kubernetes.io/part-of": "towline"} for policy in policies)
    assert {policy["metadata"]["name"]: policy["spec"] for policy in policies} == parsed("""
    default-deny:
      podSelector: {}
      policyTypes: [Ingress, Egress]
    from-gateway:
      ingress:
      - from:
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: towline-system
          podSelector:
            matchLabels:
              towline.dev/role: gateway
        ports:
        - {port: 8080, protocol: TCP}
      podSelector:
        matchLabels:
          towline.dev/role: sandbox
      policyTypes: [Ingress]
    to-internet:
      egress:
      - to:
        - ipBlock:
            cidr: 0.0.0.0/0
            except:
            - 0.0.0.0/8
            - 10.0.0.0/8
            - 100.64.0.0/10
            - 127.0.0.0/8
            - 169.254.0.0/16
            - 172.16.0.0/12
            - 192.168.0.0/16
            - 198.18.0.0/15
            - 224.0.0.0/4
            - 240.0.0.0/4
      podSelector:
        matchLabels:
          towline.dev/role: sandbox
          towline.dev/network: Internet
      policyTypes: [Egress]
    """)
