from kfp import dsl, kubernetes


@dsl.component(base_image="python:3.11", packages_to_install=["scikit-learn"])
def prepare(folder: str):
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images[..., None] * 255 / 16).astype(np.uint8)
    np.savez(f"{folder}/train.npz", images=images[:1500], labels=digits.target[:1500])
    np.savez(f"{folder}/test.npz", images=images[1500:], labels=digits.target[1500:])


@dsl.component(base_image="python:3.11", packages_to_install=["kubernetes"])
def run_tfjob(name: str, image: str, folder: str, workers: int, namespace: str):
    import time

    from kubernetes import client, config

    config.load_incluster_config()
    jobs = client.CustomObjectsApi()
    where = {"group": "kubeflow.org", "version": "v1", "namespace": namespace, "plural": "tfjobs"}
    container = {
        "name": "tensorflow",
        "image": image,
        "command": ["python", "my_train.py", "--data", folder, "--checkpoints", f"{folder}/checkpoints"],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "volumeMounts": [{"name": "data", "mountPath": folder}],
    }
    pod = {
        "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-l4"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "digits"}}],
    }
    worker = {"replicas": workers, "restartPolicy": "ExitCode", "template": {"spec": pod}}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name},
        "spec": {"runPolicy": {"activeDeadlineSeconds": 86400}, "tfReplicaSpecs": {"Worker": worker}},
    }
    try:
        jobs.delete_namespaced_custom_object(name=name, **where)  # that of an attempt before this one
        time.sleep(60)
    except client.ApiException as error:
        if error.status != 404:
            raise
    jobs.create_namespaced_custom_object(body=job, **where)
    while True:
        time.sleep(10)
        status = jobs.get_namespaced_custom_object(name=name, **where).get("status", {})
        reached = {one["type"]: one for one in status.get("conditions", []) if one["status"] == "True"}
        if "Failed" in reached:
            raise RuntimeError(reached["Failed"]["message"])
        if "Succeeded" in reached:
            break
    jobs.delete_namespaced_custom_object(name=name, **where)


@dsl.component(base_image="tensorflow/tensorflow:2.21.0")
def evaluate(folder: str, least_accuracy: float) -> float:
    import keras
    import numpy as np

    model = keras.saving.load_model(f"{folder}/model.keras")
    with np.load(f"{folder}/test.npz") as test:
        accuracy = float((model.predict(test["images"], verbose=0).argmax(axis=1) == test["labels"]).mean())
    if accuracy < least_accuracy:
        raise RuntimeError(f"accuracy is {accuracy}")
    model.export(f"{folder}/served/1", verbose=False)
    return accuracy


@dsl.pipeline(name="digits-by-hand")
def digits(image: str = "registry.example.com/digits:1", workers: int = 2, least_accuracy: float = 0.8):
    data = prepare(folder="/data")
    trained = run_tfjob(name="digits", image=image, folder="/data", workers=workers, namespace="trainyard").after(data)
    trained.set_cpu_request("100m").set_memory_request("256Mi").set_memory_limit("256Mi")
    judged = evaluate(folder="/data", least_accuracy=least_accuracy).after(trained)
    for task in (data, judged):
        kubernetes.mount_pvc(task, pvc_name="digits", mount_path="/data")
