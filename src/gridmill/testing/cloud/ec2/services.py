"""The services beside EC2: STS, Service Quotas and the Price List.

Sources: https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html,
https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference/API_ListServiceQuotas.html and
https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_pricing_GetProducts.html
"""

import hashlib
import json
from typing import Any

from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.catalogue import InstanceType, Quota
from gridmill.testing.cloud.ec2.filters import page
from gridmill.testing.cloud.ec2.refusal import RefusalError, not_simulated
from gridmill.testing.cloud.ec2.users import arn_of


def get_caller_identity(call: Call) -> dict[str, Any]:
    """Returns whose credentials the request has. It needs no rights."""
    return {
        "UserId": f"AIDA{call.principal.access_key[-16:]}",
        "Account": catalogue.ACCOUNT,
        "Arn": arn_of(call.principal),
    }


def list_service_quotas(call: Call) -> dict[str, Any]:
    """Lists the quotas of EC2 in the region."""
    _check_service(call)
    shapes = [_quota_shape(one, call) for one in catalogue.QUOTAS]
    listed, token = page(shapes, call.parameters, fewest=1, most=100)
    return {"Quotas": listed} | ({"NextToken": token} if token else {})


def get_service_quota(call: Call) -> dict[str, Any]:
    """Returns one quota of EC2 in the region."""
    _check_service(call)
    for one in catalogue.QUOTAS:
        if one.code == call.get("QuotaCode"):
            return {"Quota": _quota_shape(one, call)}
    raise RefusalError(
        "NoSuchResourceException", "The request failed because the specified quota does not exist."
    )


def _check_service(call: Call) -> None:
    if call.get("ServiceCode") != "ec2":
        raise RefusalError(
            "NoSuchResourceException", "The request failed because the specified service does not exist."
        )


def _quota_shape(quota: Quota, call: Call) -> dict[str, Any]:
    region = call.region.name
    return {
        "ServiceCode": "ec2",
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaArn": f"arn:aws:servicequotas:{region}:{catalogue.ACCOUNT}:ec2/{quota.code}",
        "QuotaCode": quota.code,
        "QuotaName": quota.name,
        "Value": float(call.world.faults.quota(quota.code, region, quota.default)),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def get_products(call: Call) -> dict[str, Any]:
    """Lists on-demand prices. Each price is a JSON text in the list."""
    if call.get("ServiceCode") != "AmazonEC2":
        raise RefusalError("NotFoundException", "Service not found")
    if call.get("FormatVersion", "aws_v1") != "aws_v1":
        raise RefusalError("InvalidParameterException", "Invalid format version")
    products = [
        _product(kind, region) for kind in catalogue.INSTANCE_TYPES.values() for region in catalogue.REGIONS
    ]
    known = [one for one in products if _has_price(call, one)]
    found = [one for one in known if all(_fits(one, each) for each in call.get("Filters", ()))]
    listed, token = page(found, call.parameters, fewest=1, most=100)
    texts = [json.dumps(one) for one in listed]
    return {"FormatVersion": "aws_v1", "PriceList": texts} | ({"NextToken": token} if token else {})


def _has_price(call: Call, product: dict[str, Any]) -> bool:
    attributes = product["product"]["attributes"]
    kind = catalogue.INSTANCE_TYPES[attributes["instanceType"]]
    return call.world.faults.has_price(kind.name) and bool(catalogue.offered(kind, attributes["regionCode"]))


def _fits(product: dict[str, Any], each: dict[str, str]) -> bool:
    if each.get("Type") != "TERM_MATCH":
        raise not_simulated(f"price filters of type {each.get('Type')}")
    attributes: dict[str, str] = product["product"]["attributes"]
    return attributes.get(each["Field"], "").lower() == each["Value"].lower()


def _product(kind: InstanceType, region: str) -> dict[str, Any]:
    sku = hashlib.sha256(f"{kind.name}/{region}".encode()).hexdigest()[:16].upper()
    term = f"{sku}.JRTCKXETXF"
    dollars = catalogue.hourly_micros(kind, region, spot=False) / 1_000_000
    dimension = {
        "unit": "Hrs",
        "description": f"${dollars} per On Demand Linux {kind.name} Instance Hour",
        "beginRange": "0",
        "endRange": "Inf",
        "rateCode": f"{term}.6YS6EN2CT7",
        "pricePerUnit": {"USD": f"{dollars:.10f}"},
        "appliesTo": [],
    }
    on_demand = {
        "sku": sku,
        "offerTermCode": "JRTCKXETXF",
        "effectiveDate": "2026-10-01T00:00:00Z",
        "termAttributes": {},
        "priceDimensions": {f"{term}.6YS6EN2CT7": dimension},
    }
    return {
        "product": {"productFamily": "Compute Instance", "sku": sku, "attributes": _attributes(kind, region)},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {term: on_demand}},
        "version": "20261001000000",
        "publicationDate": "2026-10-01T00:00:00Z",
    }


def _attributes(kind: InstanceType, region: str) -> dict[str, str]:
    attributes = {
        "servicecode": "AmazonEC2",
        "servicename": "Amazon Elastic Compute Cloud",
        "location": catalogue.REGIONS[region][0],
        "locationType": "AWS Region",
        "regionCode": region,
        "instanceType": kind.name,
        "currentGeneration": "Yes",
        "vcpu": str(kind.vcpus),
        "memory": f"{kind.memory_mib / 1024:g} GiB",
        "operatingSystem": "Linux",
        "operation": "RunInstances",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "licenseModel": "No License required",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "usagetype": f"BoxUsage:{kind.name}",
    }
    return attributes | ({"gpu": str(kind.gpus)} if kind.gpus else {})
